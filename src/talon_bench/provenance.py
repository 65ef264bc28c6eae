"""Where numbers come from: code, versions, hardware, load. Recorded before a run, never a reason for it to fail."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import torch

from talon_bench import __version__
from talon_bench.clock import PhaseClock

BUSY_SHARE = 0.2
"""Above this share of the cores used by others while the run waits, a machine counts as busy."""

READ_BYTES = 1 << 28
READ_BYTES_GPU = 1 << 31
"""What is read to measure a memory's bandwidth: far more than caches hold."""

_HOMES = ("/home", "/Users")
_ABSOLUTE = re.compile(r"/|~[\w.-]*(?:/|$)")
_PART = r"[^\s:,;'\"()/]+"
_PATHS = re.compile(rf"(?:(?<![\w./~])|(?<=://))(?:~[A-Za-z_][\w.-]*|~(?=/)|/{_PART}(?=/{_PART}))(?:/{_PART})*/?")

_TEXTS = ("system", "chat_template")
"""Options that are shown to a model as they are, even where they begin like a path ("/no_think")."""


def describe(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Provenance of a run about to start; takes half a second, in which it listens for other work on the machine.

    The first call for a device takes a little longer, as it measures the bandwidth of its memory.
    """
    busy = psutil.cpu_percent(interval=0.5) / 100
    return {
        "talon_bench": __version__,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "numpy", "pyarrow")},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpu_features": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "gpu_processes": _gpu_processes(device),
        "dtype": str(dtype).removeprefix("torch."),
        "read_gb_s": round(read_bandwidth(device, torch.get_num_threads()), 1),
        "load_before": load(),
        "cpu_used_by_others": round(busy, 3),
        "busy": busy > BUSY_SHARE,
        "started": now(),
    }


@functools.cache
def read_bandwidth(device: torch.device, threads: int) -> float:
    """GB/s at which a sum reads the memory of `device`, on a CPU with so many threads, the best of three: the roof of a pass.

    `threads` must be what torch uses; measured once in a process.
    """
    size = READ_BYTES
    if device.type == "cuda":
        size = min(READ_BYTES_GPU, torch.cuda.mem_get_info(device)[0] // 4)
    block = torch.ones(size // 4, device=device)
    clock = PhaseClock.on(device)
    spent = []
    for _ in range(3):
        clock.restart()
        block.sum()
        clock.lap("read")
        clock.lap("rest")  # a GPU's last lap takes what is left of the wall time
        spent.append(clock.take()["read"])
    return block.nbytes / min(spent) / 1e6


def load() -> float:
    """The system's load average over the last minute."""
    return round(os.getloadavg()[0], 2)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def without_folders(value: Any) -> Any:
    """A copy of nested config values in which an absolute path keeps its last part only, `.../data`, and a home nothing.

    Records are made to be shared; the folders of one machine say nothing to others, and may say too much.
    """
    if isinstance(value, dict):
        return {key: item if key in _TEXTS else without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    if isinstance(value, str) and _ABSOLUTE.match(value):
        return _last_part(value)
    return value


def without_folders_in(text: str) -> str:
    """The text of a message in which absolute paths keep their last part only, and homes nothing."""
    return _PATHS.sub(lambda found: _last_part(found[0]), text)


def _last_part(path: str) -> str:
    """`.../NAME`; of a home folder `...`, as its name is a user's."""
    whole = Path(os.path.normpath(re.sub(r"^/+", "/", path)))
    home = len(whole.parts) == 1 or str(whole.parent) in _HOMES or whole == Path(os.path.expanduser("~"))
    return "..." if home else f".../{whole.name}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or platform.processor() or platform.machine()


def _gpu_processes(device: torch.device) -> int | None:
    """Processes on the GPU beside this one; None without a GPU or where the driver does not say."""
    if device.type != "cuda":
        return None
    try:
        return max(torch.cuda.list_gpu_processes(device).count("process") - 1, 0)
    except (RuntimeError, ModuleNotFoundError):
        return None
