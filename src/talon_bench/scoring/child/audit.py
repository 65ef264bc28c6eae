"""A second line where namespaces are missing: refuse, inside the interpreter, what an answer has no need of.

An audit hook (PEP 578) cannot be taken away again by Python code, but native code is not seen by it.
"""

from __future__ import annotations

import _posixsubprocess
import os
import sys
from collections.abc import Sequence

REFUSED = frozenset(
    (
        *("os.fork", "os.forkpty", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "os.kill"),
        *("os.killpg", "os.chown", "os.setxattr", "os.removexattr", "os.symlink", "os.link", "os.chroot"),
        *("signal.pthread_kill", "resource.setrlimit", "resource.prlimit", "subprocess.Popen", "syslog.openlog"),
        *("sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    )
)
REFUSED_FAMILIES = ("socket.", "ctypes.", "fcntl.", "ftplib.", "smtplib.", "urllib.")
REFUSED_MODULES = frozenset(("_ctypes", "_posixshmem"))
CHANGES = frozenset(
    (
        *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "os.utime", "os.mkfifo"),
        *("os.mknod", "os.chflags", "shutil.rmtree", "shutil.move", "shutil.copyfile", "shutil.copytree"),
    )
)
LOOKS = frozenset(("os.listdir", "os.scandir", "os.walk", "os.chdir"))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def refuse_rest(readable: Sequence[str], work: str) -> None:
    """From now on this process may read below `readable`, do as it likes with the files of `work`, and little else."""
    realpath, separator = os.path.realpath, os.sep
    writable = (realpath(work),)
    visible = (*writable, *(realpath(path) for path in readable), os.devnull)

    def within(path: object, places: Sequence[str]) -> bool:
        if path is None or isinstance(path, int):
            return True
        real = realpath(os.fsdecode(path))
        return any(real == place or real.startswith(place + separator) for place in places)

    def hook(event: str, arguments: tuple) -> None:
        allowed = True
        if event == "open":
            allowed = within(arguments[0], (*writable, os.devnull) if arguments[2] & WRITING else visible)
        elif event == "import":
            if arguments[0] in REFUSED_MODULES:
                raise ImportError(f"{arguments[0]} is refused")
        elif event in CHANGES:
            allowed = all(within(path, writable) for path in arguments if isinstance(path, (str, bytes)))
        elif event in LOOKS:
            allowed = not arguments or within(arguments[0], visible)
        elif event in REFUSED or event.startswith(REFUSED_FAMILIES):
            allowed = False
        if not allowed:
            raise PermissionError(f"{event} is refused")

    def refuse_to_start(*_: object) -> None:
        raise PermissionError("starting a process is refused")

    sys.dont_write_bytecode = True
    # What subprocess is made of raises no audit event of its own.
    _posixsubprocess.fork_exec = refuse_to_start
    for name in ("ctypes", *REFUSED_MODULES):
        sys.modules.pop(name, None)
    sys.addaudithook(hook)
