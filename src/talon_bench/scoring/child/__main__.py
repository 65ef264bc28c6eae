"""Runs answers one after another, each in a process of its own: `python -S -s FOLDER SETTINGS`, SETTINGS as JSON.

Two processes stay: the outer one enters the namespaces, and clears up when all is over; the inner one, first in the new
process namespace, forks one process an answer. It reads a line `{"parts", "seconds"}` and writes a line `{"outcome"}`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys

import answer
import audit
import limits
import namespaces

REFUSED = 3
"""Exit status where the system refuses namespaces."""
VERDICT = 3
"""File descriptor over which an answer's process reports."""
PRELOADED = ("bisect", "cmath", "collections", "copy", "datetime", "fractions", "functools", "hashlib", "heapq")
PRELOADED += ("itertools", "math", "operator", "random", "re", "statistics", "string", "typing")
"""What answers import most, loaded once for all."""


class Runner:
    """The inner process. `folder` is where it makes working folders; None if it has namespaces, hence an own root.

    `user` is an id that nobody else has, for root to run answers as; `others` counts the threads of the present user.
    """

    def __init__(self, memory_mb: int, readable: list[str], folder: str | None, user: int, others: int) -> None:
        self._memory_mb, self._readable, self._folder = memory_mb, readable, folder
        self._rights = _least_rights(user)
        self._user = os.geteuid() if self._rights is None or self._rights[0] is None else self._rights[0]
        self._processes = limits.process_limit(self._rights[0] if self._rights else None, others)
        self._work = namespaces.WORK
        self._runs = 0

    def serve(self, requests: int, replies: int) -> None:
        """Answer requests until there are no more. The first line says what the kernel granted, once a run is possible."""
        self._make_work()
        with os.fdopen(requests) as lines, os.fdopen(replies, "w") as out:
            out.write(json.dumps({"no new privileges": self._rights is not None, "own user": self._user != 0}) + "\n")
            out.flush()
            for line in lines:
                request = json.loads(line)
                out.write(json.dumps({"outcome": self.run(request["parts"], request["seconds"])}) + "\n")
                out.flush()

    def run(self, parts: list[str], seconds: float) -> str:
        """The outcome of one answer. When it is known, no process of the answer lives, and its files are gone."""
        self._make_work()
        secret = os.urandom(16).hex().encode()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self._confine(writing, seconds)
                answer.execute(parts, VERDICT, secret)
            finally:
                os._exit(1)
        os.close(writing)
        try:
            return answer.await_verdict(child, reading, secret, seconds)
        finally:
            os.close(reading)
            limits.end_descendants(child, alone=self._folder is None)
            if self._folder is not None:
                remove(self._work)

    def _make_work(self) -> None:
        if self._folder is None:
            namespaces.fresh_work(self._user, first=self._runs == 0)
        else:
            self._work = os.path.join(self._folder, str(self._runs))
            os.mkdir(self._work, 0o700)
            if self._user != os.geteuid():
                os.chown(self._work, self._user, self._user)
        self._runs += 1

    def _confine(self, verdict: int, seconds: float) -> None:
        """Take from this process all that an answer has no need of."""
        os.setsid()
        os.dup2(verdict, VERDICT)
        os.closerange(VERDICT + 1, 1 << 16)
        os.chdir(self._work)
        limits.set_limits(self._memory_mb, seconds, self._processes)
        if self._rights is not None:
            limits.give_up_rights(self._rights[0], keep_reading=self._rights[1])
        limits.die_with_parent()
        if self._folder is not None:
            audit.refuse_rest(self._readable, self._work)


def _least_rights(user: int) -> tuple[int | None, bool] | None:
    """Arguments of `give_up_rights` that leave the fewest rights with which the interpreter still works."""
    users = [user, None] if os.geteuid() == 0 else [None]
    for choice in [(user, keep) for user in users for keep in (False, True)]:
        if limits.works(lambda choice=choice: _try_rights(*choice)):
            return choice
    return None


def _try_rights(user: int | None, keep_reading: bool) -> None:
    limits.give_up_rights(user, keep_reading=keep_reading)
    with open(os.__file__):
        pass


def readable_folders(packages: list[str]) -> list[str]:
    """What an answer can import: the standard library, the shared libraries that it needs, and `packages`."""
    own = [os.path.dirname(os.__file__), *(os.path.join(sys.base_prefix, name) for name in ("lib", "lib64"))]
    return [*own, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", *packages]


def remove(folder: str) -> None:
    """Remove a folder, whatever rights its makers left on what is in it; no link is followed."""
    with contextlib.suppress(OSError, RecursionError):
        os.chmod(folder, 0o700)
        for place, names, _ in os.walk(folder):
            for path in (os.path.join(place, name) for name in names):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _first_to_be_killed() -> None:
    """Where the machine runs out of memory, the kernel shall take it from here."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def main() -> None:
    settings = json.loads(sys.argv[1])
    packages, folder = settings["packages"], settings["folder"]
    os.umask(0o022)
    requests, replies, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    # Modules of this folder must not stand in the way of an answer's own imports.
    sys.path[:] = [*sys.path[1:], *packages]
    for name in PRELOADED:
        importlib.import_module(name)
    _first_to_be_killed()
    limits.adopt_orphans()
    readable, user, others = readable_folders(packages), limits.USERS + os.getpid(), limits.threads_of(os.getuid())
    if folder is None:
        try:
            namespaces.enter(readable)
        except OSError:
            sys.exit(REFUSED)
    child = os.fork()
    if child == 0:
        limits.die_with_parent()
        limits.adopt_orphans()
        Runner(settings["memory_mb"], readable, folder, user, others).serve(requests, replies)
        os._exit(0)
    os.close(requests)
    os.close(replies)
    os.waitpid(child, 0)
    limits.end_descendants(child, alone=False)
    if folder is not None:
        remove(folder)


if __name__ == "__main__":
    main()
