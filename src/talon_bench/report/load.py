"""Reads run folders (`run.json`, `turns.parquet`, `rounds.parquet`), refuses what would be misread."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench.errors import UsageError
from talon_bench.metrics import (
    BASELINE,
    EAGER,
    KEYS,
    MethodSummary,
    decode_tokens,
    measured,
    speedups_over,
    summarise,
)
from talon_bench.records import SCHEMA
from talon_bench.stats import Estimate

_COUNTS = (
    ("count", "emitted"),
    ("rounds", "tokens"),
)  # of the same turn, in rounds.parquet and in turns.parquet


@dataclass(frozen=True)
class RunData:
    """One run: `info` is run.json, `turns` has a row per (prompt, turn, method), `rounds` a verification."""

    path: Path
    info: dict
    turns: pd.DataFrame
    rounds: pd.DataFrame

    @property
    def target(self) -> str:
        return self.info["target"]

    @property
    def dataset(self) -> str:
        return self.info["dataset"]["name"]

    @property
    def methods(self) -> dict[str, dict]:
        """Settings by method name, in line-up order."""
        return self.info["methods"]

    @property
    def baseline_again(self) -> str | None:
        """The A/A row: a second autoregressive method in the line-up, on the same engine as the first."""
        again = {name: method for name, method in self.methods.items() if method["policy"] == "ar" and name != BASELINE}
        return next((name for name, method in again.items() if method.get("engine", "run") == "run"), None)

    @cached_property
    def labels(self) -> dict[str, str]:
        """Label by method name; two methods that share a label are told apart by their names."""
        labels = {name: method["label"] for name, method in self.methods.items()}
        texts = list(labels.values())
        return {name: text if texts.count(text) == 1 else f"{text} [{name}]" for name, text in labels.items()}

    @cached_property
    def summaries(self) -> dict[str, MethodSummary]:
        """Metrics by method name, in line-up order."""
        return {row.method: row for row in summarise(self.turns, self.rounds, methods=list(self.methods))}

    @cached_property
    def speedups(self) -> dict[str, dict[str, Estimate]]:
        """By baseline, then by method: over AR, and over AR launched kernel by kernel where that was measured."""
        found = {BASELINE: {name: Estimate(row.speedup, *row.speedup_ci95) for name, row in self.summaries.items()}}
        if EAGER in self.summaries and self.summaries[EAGER].turns:
            found[EAGER] = speedups_over(self.measured[0], EAGER, list(self.methods))[1]
        return found

    @cached_property
    def measured(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Turns with status ok and their rounds."""
        return measured(self.turns, self.rounds)


def load_run(path: str | os.PathLike[str], *, allow_running: bool = False) -> RunData:
    """Reads one run folder.

    Raises UsageError for a missing file, another schema version, a run that has not finished (unless
    `allow_running`), and for turns and rounds that contradict each other.
    """
    folder = Path(path)
    info = _info(folder / "run.json")
    if info["status"] != "complete" and not allow_running:
        raise UsageError(f"{folder} has status {info['status']!r}, expected 'complete': resume the run, then report it")
    files = [folder / name for name in ("turns.parquet", "rounds.parquet")]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UsageError(f"{folder} lacks {', '.join(missing)}: expected a run folder written by talon_bench")
    run = RunData(folder, info, _read(files[0]), _read(files[1]))
    if info["status"] == "complete":
        _check(run)
    return run


def load_runs(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, allow_running: bool = False
) -> list[RunData]:
    """Every run at or below a folder (or each of several), sorted by path; UsageError where there is none."""
    roots = [source] if isinstance(source, str | os.PathLike) else list(source)
    folders = sorted({file.parent for root in roots for file in Path(root).rglob("run.json")})
    if not folders:
        found = ", ".join(str(root) for root in roots)
        raise UsageError(f"no run.json at or below {found}: expected the folder of one or more runs")
    return [load_run(folder, allow_running=allow_running) for folder in folders]


def _info(file: Path) -> dict:
    """run.json, whose schema version is checked before anything else is believed."""
    if not file.is_file():
        raise UsageError(f"{file} does not exist: expected a run folder written by talon_bench")
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is no JSON ({error}): expected the file a run writes, rerun") from None
    if not isinstance(info, dict):
        raise UsageError(f"{file} holds {type(info).__name__}: expected the object a run writes, rerun")
    if info.get("schema") != SCHEMA:
        raise UsageError(f"{file} has schema {info.get('schema')!r}, expected {SCHEMA}: use the release that wrote it")
    return info


def _read(file: Path) -> pd.DataFrame:
    """A table with names as categories and lists left in Arrow, so that millions of rounds stay small."""
    try:
        table = pq.read_table(file, read_dictionary=["prompt_id", "method"])
    except pa.ArrowException:
        raise UsageError(f"{file} is damaged: expected the table that a run writes, measure again") from None
    return table.to_pandas(
        types_mapper=lambda kind: pd.ArrowDtype(kind) if pa.types.is_list(kind) else None,
        split_blocks=True,
        self_destruct=True,
    )


def _check(run: RunData) -> None:
    """Turns are unique, and the rounds of each measured turn add up to its counts."""
    if run.turns.duplicated(KEYS).any():
        raise UsageError(f"{run.path} has two rows for one (prompt_id, turn, method), expected one: rerun it elsewhere")
    turns, rounds = run.measured
    emitted = rounds.groupby(KEYS, observed=True, sort=False)["emitted"]
    sums = pd.DataFrame({"emitted": emitted.sum(), "count": emitted.size()})
    stated = turns.assign(tokens=decode_tokens(turns))[[*KEYS, "tokens", "rounds"]]
    joined = stated.merge(sums.reset_index(), on=KEYS, how="left").fillna({"emitted": 0, "count": 0})
    wrong = joined[(joined["tokens"] != joined["emitted"]) | (joined["rounds"] != joined["count"])]
    if len(wrong):
        row = wrong.iloc[0]
        found, expected = (f"{row[count]:.0f} rounds, {row[tokens]:.0f} tokens" for count, tokens in _COUNTS)
        raise UsageError(
            f"{run.path}: prompt {row['prompt_id']} turn {row['turn']} method {row['method']} has "
            f"{found}, expected {expected}: the records are damaged, rerun"
        )
