"""Sweeps of the toys as commands of their own, whose jobs launchers run in further processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAM = [sys.executable, "-m", "talon_bench"]
SECONDS = 150


@dataclass
class Sweep:
    """A running `python -m talon_bench -m ...` in a folder of its own."""

    process: subprocess.Popen
    root: Path
    _seen: list[psutil.Process] = field(default_factory=list)

    @classmethod
    def start(cls, root: Path, arguments: Sequence[str]) -> Sweep:
        process = subprocess.Popen(
            [*PROGRAM, "-m", *arguments],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TALON_BENCH_CACHE": str(root / "cache")},
        )
        return cls(process, root)

    def jobs(self, text: str = "hydra.mode=RUN") -> list[psutil.Process]:
        """Processes of this command's jobs whose command line has `text`."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if "talon_bench" in words and text in words and "hydra.mode=RUN" in words:
                found.append(child)
        return found

    def wait_for(self, ready: Callable[[], object]) -> object:
        """The first true value of `ready`, while the command runs."""
        deadline = time.monotonic() + SECONDS
        while not (value := ready()):
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return value

    def measured(self, alpha: float) -> list[Path]:
        """Files of the prompts that are done of the unfinished run with this alpha."""
        for file in self.root.glob("runs/*/run.json"):
            if json.loads(file.read_text())["config"]["method"]["alpha"] == alpha:
                return list(file.parent.glob("parts/*.turns.parquet"))
        return []

    def halt_job(self, alpha: float) -> psutil.Process:
        """The job with this alpha, stopped after its first prompt, until `resume`."""
        self.wait_for(lambda: self.measured(alpha))
        (job,) = self.jobs(f"method.alpha={alpha}")
        self._seen = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        job.suspend()
        return job

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        """A test that failed half-way leaves no process either."""
        for left in self._seen:
            with contextlib.suppress(psutil.Error):
                left.kill()

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=SECONDS)
        return Ended(self.process.returncode, out, err)


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def results(self) -> list[dict]:
        """The JSON lines of stdout."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


def gone(processes: Sequence[psutil.Process], seconds: float = 10.0) -> bool:
    """Whether all of these end within a time; one that ended and that its new parent has not waited for yet has ended."""
    alive = psutil.wait_procs(processes, seconds)[1]
    return not [process for process in alive if not _ended(process)]


def _ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
