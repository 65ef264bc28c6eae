"""The results of a complete run folder in the forms that W&B takes: tables of plain values, figures, files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from talon_bench.report.load import RunData
from talon_bench.report.tables import detail_table, main_table

RECORDS = ("run.json", "turns.parquet", "rounds.parquet", "trees.parquet", "scores.json", "scores.parquet")
"""The files of a run folder; trees and scores are there only where they were asked for."""
SUMMARY = ("mat", "eta", "gamma", "tokens_per_second", "speedup", "predicted_speedup")
_PIXELS_PER_INCH = 150


def tables(run: RunData) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """(columns, rows) of the main and the detail table by name."""
    # The folder's name is the user's own; the run's name stands for it.
    return {"main": _plain(main_table([run])), "detail": _plain(detail_table([run]).drop(columns="run"))}


def figures(run: RunData) -> Iterator[tuple[str, bytes, str]]:
    """(name, PNG, caption) of every figure that the run allows."""
    from talon_bench.report.figures import all_plots

    for plot in all_plots([run]):
        yield plot.stem, plot.png(dpi=_PIXELS_PER_INCH), plot.caption


def summary(run: RunData, names: dict[str, str]) -> dict[str, float]:
    """Final metrics by `METRIC/METHOD`, the ends of the speedup's interval among them; what is undefined is left out."""
    values: dict[str, float] = {}
    for method, row in run.summaries.items():
        values |= {f"{metric}/{names[method]}": getattr(row, metric) for metric in SUMMARY}
        ends = zip(("speedup_low", "speedup_high"), row.speedup_ci95, strict=True)
        values |= {f"{metric}/{names[method]}": value for metric, value in ends}
    return {key: value for key, value in values.items() if math.isfinite(value)}


def records(folder: Path) -> list[Path]:
    """Those of `RECORDS` that are there."""
    return [folder / name for name in RECORDS if (folder / name).is_file()]


def fingerprint(folder: Path) -> str:
    """Hex SHA-256 of the files that change whenever the run is measured, resumed or scored again."""
    small = [file for file in records(folder) if file.suffix == ".json"]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in small)).hexdigest()


def _plain(frame: pd.DataFrame) -> tuple[list[str], list[list[Any]]]:
    if frame.index.names != [None]:
        frame = frame.reset_index()
    columns = [" ".join(filter(None, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    return columns, [[_value(value) for value in row] for row in frame.itertuples(index=False, name=None)]


def _value(value: Any) -> Any:
    """A number, string or bool of Python's own; None for what is undefined."""
    value = value.item() if hasattr(value, "item") else value
    return None if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)) else value
