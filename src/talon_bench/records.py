"""What a run writes: `run.json`, `turns.parquet`, `rounds.parquet`, `trees.parquet`. Atomic, resumable, nothing derived.

While a run goes on, each prompt's rows are files of `parts/`; the turns file is written last and marks the prompt as done.
At the end the parts become the tables. Columns are described in docs/records.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench import atomic
from talon_bench.errors import UsageError

SCHEMA = 1
LOCK_POLL_S = 0.1

TURNS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("category", pa.string()),
        ("turn", pa.int16()),
        ("method", pa.string()),
        ("order", pa.int16()),
        ("prompt_tokens", pa.int32()),
        ("prompt_sha256", pa.string()),
        ("output_ids", pa.list_(pa.int32())),
        ("new_tokens", pa.int32()),
        ("stop", pa.string()),
        ("rounds", pa.int32()),
        ("draft_passes", pa.int32()),
        ("prefill_ms", pa.float64()),
        ("decode_ms", pa.float64()),
        ("draft_ms", pa.float64()),
        ("verify_ms", pa.float64()),
        ("other_ms", pa.float64()),
        ("equals_ar", pa.bool_()),
        ("diverged_at", pa.int32()),
        ("ar_token", pa.int32()),
        ("method_token", pa.int32()),
        ("margin", pa.float64()),
        ("load", pa.float64()),
        ("status", pa.string()),
        ("error", pa.string()),
    ]
)
ROUNDS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("turn", pa.int16()),
        ("method", pa.string()),
        ("round", pa.int32()),
        ("context", pa.int32()),
        ("draft_passes", pa.int16()),
        ("nodes", pa.int16()),
        ("widths", pa.list_(pa.int16())),
        ("accepted", pa.int16()),
        ("emitted", pa.int16()),
        ("path_ranks", pa.list_(pa.int16())),
        ("draft_ms", pa.float64()),
        ("verify_ms", pa.float64()),
        ("other_ms", pa.float64()),
    ]
)
TREES = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("turn", pa.int16()),
        ("method", pa.string()),
        ("round", pa.int32()),
        ("tokens", pa.list_(pa.int32())),
        ("pieces", pa.list_(pa.string())),
        ("parents", pa.list_(pa.int16())),
        ("scores", pa.list_(pa.float32())),
        ("path", pa.list_(pa.int16())),
        ("next_token", pa.int32()),
        ("next_piece", pa.string()),
    ]
)
SCHEMAS = {"turns": TURNS, "rounds": ROUNDS, "trees": TREES}


class RunFolder:
    """One run's folder, held by one process at a time.

    `identity` is a hash of all that decides what the run measures: a folder of another identity is refused. `fresh` takes
    no notice of what is there, and replaces it once the run begins. A folder that another process holds is waited for
    `wait_s` seconds, then refused.
    """

    def __init__(self, path: Path, identity: str, *, fresh: bool = False, wait_s: float = 0.0) -> None:
        self.path = path
        try:
            self._lock = self._enter(wait_s)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise UsageError(
                f"{path} cannot be a run folder ({error.strerror}); set run.root or run.dir to another folder"
            ) from None
        self._parts = path / "parts"
        try:
            self.info = {} if fresh else self._read_info(identity)
        except BaseException:
            self._lock.close()
            raise

    @property
    def complete(self) -> bool:
        return self.info.get("status") == "complete"

    def begin(self, info: dict[str, Any]) -> None:
        """Write run.json before the first measurement; a resumed run keeps its own and notes the new session in it."""
        if not self.info:
            self._clear()
            self.info = {"schema": SCHEMA, "status": "running", **info}
        else:
            self._refuse_other_weights(info)
            self.info.setdefault("resumed", []).append(info["provenance"])
        self._parts.mkdir(exist_ok=True)
        self._write_info()

    def done(self) -> set[int]:
        """Numbers of the prompts whose rows are on disk."""
        return {int(file.name.split(".")[0]) for file in self._parts.glob("*.turns.parquet")}

    def add(self, number: int, turns: list[dict], rounds: list[dict], trees: Sequence[dict] = ()) -> None:
        """Keep the rows of one prompt; most prompts keep no trees."""
        rows = {"trees": trees, "rounds": rounds, "turns": turns}
        for kind in rows if trees else ("rounds", "turns"):
            table = pa.Table.from_pylist(rows[kind], SCHEMAS[kind])
            write_table(table, self._parts / f"{number:06d}.{kind}.parquet")

    def rows(self) -> tuple[pa.Table, pa.Table]:
        """(turns, rounds) so far, in prompt order."""
        if self.complete:
            return pq.read_table(self.path / "turns.parquet"), pq.read_table(self.path / "rounds.parquet")
        return self._join("turns"), self._join("rounds")

    def finish(self, **updates: dict[str, Any]) -> None:
        """Join the parts into the two tables, merge `updates` into run.json and mark the run complete.

        Safe to repeat after a kill at any point.
        """
        turns, rounds = self.rows()
        if (trees := self._join("trees")).num_rows:
            write_table(trees, self.path / "trees.parquet")
        write_table(turns, self.path / "turns.parquet")
        write_table(rounds, self.path / "rounds.parquet")
        for key, value in updates.items():
            self.info[key] = {**self.info.get(key, {}), **value}
        self.info["status"] = "complete"
        self._write_info()
        shutil.rmtree(self._parts, ignore_errors=True)

    def close(self) -> None:
        """Let other processes have the folder; one in which nothing was begun is removed again."""
        if not self.info:
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()
        self._lock.close()

    def _refuse_other_weights(self, info: dict[str, Any]) -> None:
        """The identity knows checkpoints by their names only; rows of two sets of weights must not meet in one run."""
        for key in ("checkpoint", "heads"):
            if self.info.get(key) != json.loads(json.dumps(info.get(key))):
                raise UsageError(
                    f"{self.path} was begun with other weights or settings of its {key};"
                    " set run.dir to another folder, or run.fresh=true to replace it"
                )

    def _enter(self, wait_s: float) -> IO[str]:
        """The lock file, held by this process."""
        end = time.monotonic() + wait_s
        while (lock := self._take()) is None:
            if time.monotonic() >= end:
                raise UsageError(
                    f"{self.path} is being written by another process; wait for it, or set run.dir to another folder"
                )
            time.sleep(LOCK_POLL_S)
        return lock

    def _take(self) -> IO[str] | None:
        """The lock file where it is free and still the folder's: another process's `close` may be removing it right now."""
        with contextlib.suppress(FileNotFoundError):
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.path / ".lock"
            lock = file.open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                    return lock
            except OSError:
                pass
            lock.close()
        return None

    def _join(self, kind: str) -> pa.Table:
        files = [self._parts / f"{number:06d}.{kind}.parquet" for number in sorted(self.done())]
        tables = [pq.read_table(file) for file in files if kind != "trees" or file.is_file()]
        return pa.concat_tables(tables) if tables else SCHEMAS[kind].empty_table()

    def _read_info(self, identity: str) -> dict[str, Any]:
        file = self.path / "run.json"
        if not file.is_file():
            return {}
        try:
            info = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            info = None
        if not isinstance(info, dict):
            raise UsageError(f"{file} is damaged; set run.fresh=true to measure again")
        if info.get("schema") != SCHEMA:
            raise UsageError(
                f"{file} has schema {info.get('schema')}, expected {SCHEMA}; set run.fresh=true to measure again"
            )
        if info.get("identity") != identity:
            raise UsageError(
                f"{self.path} holds a run of another configuration;"
                " set run.dir to another folder, or run.fresh=true to replace it"
            )
        return info

    def _write_info(self) -> None:
        atomic.replace(
            self.path / "run.json",
            lambda part: part.write_text(json.dumps(self.info, indent=2) + "\n", encoding="utf-8"),
        )

    def _clear(self) -> None:
        """Remove what an older run left, also one whose own clearing was killed half-way."""
        for name in ("run.json", "scores.json", "scores.parquet", *(f"{kind}.parquet" for kind in SCHEMAS)):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self._parts, ignore_errors=True)


def write_table(table: pa.Table, file: Path) -> None:
    """Write a table as Parquet, whole or not at all."""
    atomic.replace(file, lambda part: pq.write_table(table, part, compression="zstd"))
