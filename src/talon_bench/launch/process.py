"""One job of a sweep as a process of its own: the same command, with one value for each key that the sweep varies.

The process ends when whoever started it ends, in whatever way: it reads the other end of a pipe as its stdin.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PROGRAM = (sys.executable, "-m", "talon_bench")
JOBS_AT_ONCE = "TALON_BENCH_JOBS_AT_ONCE"
"""Set in the environment of a launched job: how many jobs share the machine with it, itself included; empty: not known."""
GRACE_S = 15.0
"""How long an interrupted job may take to end before it is killed; what it measured is on disk all along."""
KEPT = "what was measured is kept, the same command without run.fresh resumes it"
_POLL_S = 0.05
_OUTPUT_S = 5.0
"""How long the messages of a job that has ended are waited for: a process it left behind may hold them open."""


@dataclass(frozen=True)
class Ended:
    """Exit status of a job and all that it wrote to stdout and stderr."""

    status: int
    out: str = ""
    err: str = ""


@dataclass
class Job:
    """A job that may run here or, pickled before it runs, elsewhere.

    `arguments` are those of the command line, `folder` its working directory. A process that something killed is started
    again up to `retries` times, and resumes. With `echo`, what it writes to stderr appears on this process's at once,
    behind `name`.
    """

    name: str
    arguments: tuple[str, ...]
    folder: str
    retries: int = 0
    echo: bool = False
    _process: subprocess.Popen | None = field(default=None, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def __call__(self, environment: Mapping[str, str]) -> Ended:
        """Run to the end with these variables beside those of this process; status 130 where it was interrupted."""
        told = ""
        try:
            for left in reversed(range(self.retries + 1)):
                if self._stopped:
                    return Ended(130, err=told)
                ended = self._run(environment)
                told += ended.err
                if ended.status >= 0 or self._stopped:
                    return Ended(130 if ended.status < 0 else ended.status, ended.out, told)
                reason = f"killed by {signal.Signals(-ended.status).name}"
                line = f"{reason}; started again" if left else f"error: {reason}; {KEPT}"
                self.tell(line)
                told += f"{line}\n"
            return Ended(1, ended.out, told)
        finally:
            interrupt([self])

    def tell(self, line: str) -> None:
        """Show one line of or about the job on stderr, with `echo`."""
        if self.echo:
            print(f"[{self.name}] {line}", file=sys.stderr, flush=True)

    def _run(self, environment: Mapping[str, str]) -> Ended:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
            process = self._process = subprocess.Popen(
                [*PROGRAM, *self.arguments],
                cwd=self.folder,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the parent, which then ends its jobs
            )
            if self._stopped:  # since the caller looked
                _signal(process)
            lines: list[str] = []
            relay = threading.Thread(target=self._relay, args=(process, lines), daemon=True)
            relay.start()
            # Not `wait`, whose lock a signal handler that ends the job (a checkpoint) would meet.
            while process.poll() is None:
                time.sleep(_POLL_S)
            relay.join(_OUTPUT_S)
            process.stdin.close()
            if process.returncode < 0:
                _kill_group(process)  # what the killed process left behind
            out.seek(0)
            return Ended(process.returncode, out.read(), "".join(lines))

    def _relay(self, process: subprocess.Popen, lines: list[str]) -> None:
        with process.stderr as messages:
            for line in messages:
                lines.append(line)
                self.tell(line.rstrip())


def interrupt(jobs: Sequence[Job]) -> None:
    """End all of these jobs that still run, as Ctrl-C would; by force what takes longer than the time of grace."""
    running = []
    for job in jobs:
        job._stopped = True
        if job._process is not None and job._process.poll() is None:
            _signal(job._process)
            running.append(job._process)
    deadline = time.monotonic() + GRACE_S
    for process in running:
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if process.poll() is None:
            _kill_group(process)
            process.wait()


def _kill_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _signal(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)


def launched() -> bool:
    """Whether a launcher started this process as a job."""
    return JOBS_AT_ONCE in os.environ


def jobs_at_once() -> int | None:
    """Jobs of the sweep that share this machine, this one included; None: not launched, or not known."""
    return int(os.environ.get(JOBS_AT_ONCE) or 0) or None


def end_with_parent() -> None:
    """From now on this process is interrupted, then ended, once the other end of its stdin is closed."""
    # A parent in the background of a shell ignores SIGINT, a worker of Ray blocks it, and both would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(GRACE_S)
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()
