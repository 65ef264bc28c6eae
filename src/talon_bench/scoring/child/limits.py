"""Limits and rights of a process, taken from it for good."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import time
from collections.abc import Callable

from namespaces import call

PROCESSES = 16
"""Processes and threads of one answer. Each may use the memory limit, so few."""
FILE_MIB = 16
OPEN_FILES = 64

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 8, 36, 38
CAPABILITY_VERSION = 0x20080522
CAP_DAC_READ_SEARCH = 1 << 2
USERS = 2_000_000_000
"""Above this, user ids that nobody has: each child process takes its own, so that limits by user are its own as well."""
END_S = 5.0


def works(attempt: Callable[[], object]) -> bool:
    """Whether `attempt`, made by a process of its own, raises nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            attempt()
            status = 0
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def prctl(option: int, value: int) -> None:
    call("prctl", option, value, 0, 0, 0)


def die_with_parent() -> None:
    with contextlib.suppress(OSError):
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can slip away."""
    with contextlib.suppress(OSError):
        prctl(PR_SET_CHILD_SUBREAPER, 1)


def give_up_rights(user: int | None, *, keep_reading: bool = False) -> None:
    """Become `user`, if not None, with no capability and no way to gain one; OSError where the system refuses.

    `keep_reading` keeps the right to read any file, for an interpreter that lies in a folder of root's alone.
    """
    if user is not None:
        prctl(PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    rights = CAP_DAC_READ_SEARCH if keep_reading else 0
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    call("capset", header, (ctypes.c_uint32 * 6)(rights, rights, 0, 0, 0, 0))
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def set_limits(memory_mb: int, seconds: float, processes: int) -> None:
    """Limits of this process and those that it starts; one that the system does not know stays unset."""
    memory, size, cpu = memory_mb << 20, FILE_MIB << 20, math.ceil(seconds) + 1
    for name, value in (
        ("RLIMIT_AS", memory),
        ("RLIMIT_CPU", cpu),
        ("RLIMIT_FSIZE", size),
        ("RLIMIT_NOFILE", OPEN_FILES),
        ("RLIMIT_NPROC", processes),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_MEMLOCK", 0),
    ):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def process_limit(user: int | None, others: int) -> int:
    """RLIMIT_NPROC that leaves an answer of `user` its own PROCESSES beside the `others` that the real user has.

    The kernel counts by user and, since Linux 5.14, by user namespace: only elsewhere do the others count.
    """

    def fork_within() -> None:
        with contextlib.suppress(OSError):
            give_up_rights(user)
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
        if os.fork() == 0:
            os._exit(0)

    return PROCESSES if works(fork_within) else PROCESSES + others


def end_descendants(child: int, *, alone: bool) -> None:
    """Kill and reap `child` and every other descendant. `alone`: in a process namespace of whose processes this is the first.

    Elsewhere, orphans that were adopted count too; where the system does not list children, the group of `child` must do.
    """
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if alone and os.getpid() == 1:
                os.kill(-1, signal.SIGKILL)
            else:
                _kill_children(child)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _kill_children(child: int) -> None:
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        os.killpg(child, signal.SIGKILL)
        return
    for each in children:
        os.kill(each, signal.SIGKILL)


def threads_of(user: int) -> int:
    """Threads that `user` has now, as far as the system tells."""
    count = 0
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
