"""Linux namespaces: a process's own view of files, processes and network. Needs nothing outside the C library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

ROOT = "/proc"
"""Where the new root is mounted: a folder that every Linux has, and in which nothing lies that an answer may read."""
WORK = "/answer"
"""The working folder inside the new root: no folder that may hold the interpreter or packages, as /tmp may."""
WORK_MIB = 16
WORK_FILES = 1024

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 1 << 17, 1 << 26, 1 << 27
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 28, 1 << 29, 1 << 30
KINDS = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def call(name: str, *arguments: object) -> None:
    """A function of the C library that gives 0 when all is well; OSError otherwise, or where it is missing."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, name):
        raise OSError(f"no {name} on this system")
    if getattr(library, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def enter(readable: Sequence[str]) -> None:
    """Leave the system's namespaces for own ones, with a new root that is read-only and empty but for `readable`.

    No network device is up. The caller's next child is the first process of the new process namespace. OSError where the
    system refuses: the caller must then end, since some of the steps may have been taken.
    """
    _leave()
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in sorted(readable, key=len):
        for place in (os.path.realpath(path), path):
            if os.path.isdir(path) and not os.path.lexists(ROOT + place):
                os.makedirs(ROOT + place)
                _bind(path, ROOT + place)
    os.makedirs(ROOT + "/dev", exist_ok=True)
    for path in DEVICES:
        with open(ROOT + path, "x"):
            _mount(path, ROOT + path, None, MS_BIND)
    os.makedirs(ROOT + WORK, exist_ok=True)
    _mount(None, ROOT, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    # In a changed root the kernel refuses further user namespaces, so no process can gain rights over mounts again.
    os.chroot(ROOT)
    os.chdir("/")


def fresh_work(user: int, *, first: bool) -> None:
    """An empty working folder of limited size for `user`, in the place of the last one and all that it held."""
    if not first:
        call("umount2", WORK.encode(), MNT_DETACH)
    options = f"size={WORK_MIB}m,nr_inodes={WORK_FILES},mode=700,uid={user}"
    _mount("tmpfs", WORK, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)


def _leave() -> None:
    """Root does it by its own right; another user through a user namespace, in which it stays itself."""
    user, group = os.geteuid(), os.getegid()
    try:
        call("unshare", KINDS)
    except PermissionError:
        call("unshare", KINDS | CLONE_NEWUSER)
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)


def _bind(path: str, place: str) -> None:
    """Show `path` at `place`, read-only. A flag that the source's mount has must be kept, or the kernel refuses."""
    _mount(path, place, None, MS_BIND | MS_REC)
    kept = os.statvfs(path).f_flag & MS_NOEXEC
    _mount(None, place, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, place, kind, options)]
    call("mount", texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
