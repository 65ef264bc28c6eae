"""Runs SQL that a model wrote against a database, in a child process that can only read."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.scoring import sql_child
from talon_bench.scoring.workers import run_all

START_S = 30.0
"""Seconds that a child may take to start on a busy machine."""


@dataclass(frozen=True)
class Query:
    """One comparison: does `query` return what `gold` returns on this SQLite file?"""

    database: Path
    gold: str
    query: str


class QueryRunner:
    """One child process, started when it is needed and again after a query has ended it."""

    def __init__(self, timeout_s: float, memory_mb: int) -> None:
        self._limits = (timeout_s, memory_mb)
        self._folder = tempfile.TemporaryDirectory(prefix="talon_bench_sql_")
        self._child: subprocess.Popen | None = None
        self.guards: dict[str, bool] = {}

    def __enter__(self) -> QueryRunner:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def run(self, query: Query) -> str:
        """The outcome, "passed" where the two results are equal; UsageError where the gold query itself fails."""
        if self._child is None or self._child.poll() is not None:
            self._end()
            self._start()
        request = {"database": str(query.database.resolve()), "gold": query.gold, "query": query.query}
        # The child stops itself after either query; this is for one that no longer can.
        reply = self._ask(json.dumps(request), 2 * (self._limits[0] + sql_child.GRACE_S) + START_S)
        if "gold_error" in reply:
            raise UsageError(
                f"the gold query of {query.database.name} fails ({reply['gold_error']}): {query.gold};"
                " expected the database that Spider publishes, or raise scoring.timeout_s"
            )
        return reply["outcome"]

    def _ask(self, line: str, seconds: float) -> dict:
        try:
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return {"outcome": self._ended()}
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict:
        """The child's next line; where it ends without one, or takes too long, the outcome that this means."""
        if not select.select([self._child.stdout], [], [], seconds)[0]:
            self._end()
            return {"outcome": "timed out"}
        line = self._child.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else {"outcome": self._ended()}

    def _ended(self) -> str:
        status = self._child.wait()
        self._end()
        return "timed out" if status == -signal.SIGALRM else "killed"

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", sql_child.__file__, *map(str, self._limits)]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            env={},
            start_new_session=True,
        )
        self.guards = self._reply(START_S).get("guards", {})
        if not self.guards:
            raise UsageError(
                f"the process that runs SQL does not start within {self._limits[1]} MiB; raise scoring.memory_mb"
            )

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
            self._child.stdout.close()
            self._child = None


class QueryPool:
    """`workers` children, side by side."""

    def __init__(self, timeout_s: float, memory_mb: int, workers: int) -> None:
        self._limits = (timeout_s, memory_mb)
        self._workers = workers

    def guards(self) -> dict[str, bool]:
        """Which guards hold: those of SQLite and of the start always, the limits of the process where the system takes them."""
        with QueryRunner(*self._limits) as runner:
            own = runner.guards
        always = ("time", "read-only database", "statements", "empty folder", "environment")
        return {**dict.fromkeys(always, True), **own}

    def run(self, queries: Sequence[Query]) -> list[str]:
        """Outcomes in the order of the queries."""
        return run_all(queries, self._workers, lambda: QueryRunner(*self._limits))
