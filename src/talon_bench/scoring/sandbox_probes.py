"""Programs that try to get past one guard each: what is reported as active was tried on this machine."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

HOME_FILES = 20


@contextlib.contextmanager
def probes(memory_mb: int, environment: Collection[str]) -> Iterator[dict[str, tuple[str, str]]]:
    """By guard, a program and the outcome that it has where the guard holds. Targets exist while the context is open.

    They are a file that every user may read, and a socket that waits for connections.
    """
    with tempfile.TemporaryDirectory(prefix="talon_bench_") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        Path(folder).chmod(0o755)
        target = Path(folder) / "target"
        target.write_text("untouched", encoding="utf-8")
        files = [*_home_files(), str(target)]
        yield {
            "time": ("while True: pass", "timed out"),
            "memory": _refused(f"bytearray({2 * memory_mb} << 20)", "MemoryError"),
            "processes": _refused("for _ in range(64):\n        os.fork() or (time.sleep(9), os._exit(0))"),
            "file size": _refused("file = open('file', 'wb')\n    for _ in range(64): file.write(bytes(1 << 20))"),
            "open files": _refused("files = [open(os.devnull) for _ in range(256)]"),
            "no core dumps": ("import resource\nassert resource.getrlimit(resource.RLIMIT_CORE)[1] == 0", "passed"),
            "empty folder": ("import os\nassert os.listdir() == []", "passed"),
            "home files": ("\n".join(_refused(f"open({file!r})")[0] for file in files), "passed"),
            "writes outside": _refused(f"open({str(target)!r}, 'a')"),
            "network": _refused(f"socket.create_connection({server.getsockname()!r}, 0.3)"),
            "environment": (f"import os\nassert set(os.environ) <= set({sorted(environment)})", "passed"),
            "process namespace": ("import os\nassert os.getppid() == 1", "passed"),
            "mount namespace": (f"import os\nassert not os.path.exists({str(target)!r})", "passed"),
            "audit hook": _refused("sys._current_frames()", "PermissionError"),
        }


def _refused(statement: str, error: str = "OSError") -> tuple[str, str]:
    """A program that passes where `statement` raises `error`."""
    return (
        f"import os, socket, sys, time\ntry:\n    {statement}\nexcept {error}: pass\nelse: raise ValueError",
        "passed",
    )


def _home_files() -> list[str]:
    """Some files of the user's own home."""
    with contextlib.suppress(OSError, RuntimeError):
        return [str(path) for path in sorted(Path.home().iterdir()) if path.is_file()][:HOME_FILES]
    return []
