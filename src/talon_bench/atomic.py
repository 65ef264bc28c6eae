"""Files that are never seen half-written, whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `file`, and move it into place once it is on disk."""
    part = file.with_name(f".{file.name}.part")
    write(part)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(part, file)
