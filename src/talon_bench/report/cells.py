"""Tables of rows against data sets: what a method measured there, its mean over them, and which row is the best.

The main table and the ablations are such tables; they differ in what a row stands for (`Entry`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from talon_bench.metrics import BASELINE, PAIR, paired_cells, paired_prompts
from talon_bench.report.load import RunData
from talon_bench.stats import interval, mean_ratios, ratios_of_sums

CELLS = ("speedup", "ci_low", "ci_high", "mat", "eta", "best")
DATASETS = ("alpaca", "gsm8k", "humaneval", "mt_bench", "qa", "cnn_dm")
"""Columns in the order of the paper's tables; other data sets follow as they come."""
MEAN = "mean"
MEAN_NOTE = (
    "mean: unweighted mean over the data sets of a target's rows, n/a where a row lacks one of them; its interval "
    "draws prompts within each data set. Bold there: the interval of its difference to every other lossless "
    "method's mean speedup, over the turns that all of them completed, lies above 0."
)


@dataclass(frozen=True)
class Entry:
    """One cell to fill: what `method` measured in `run` goes to row (`group`, `label`), column `run.dataset`.

    A group has one run per data set.
    """

    group: str
    label: str | float
    run: RunData
    method: str


def cell_table(entries: Sequence[Entry], names: Sequence[str]) -> pd.DataFrame:
    """Index `names` (group, label) in the order of `entries`, columns (data set, one of `CELLS`).

    `best` is the fastest lossless method of a column and group where it is separated from all others. With
    more than one data set a column `MEAN` follows.
    """
    rows: dict[tuple[str, str | float], dict] = {}
    for entry in entries:
        rows[entry.group, entry.label] = {}
    datasets = _ordered(dict.fromkeys(entry.run.dataset for entry in entries))
    for group in dict.fromkeys(entry.group for entry in entries):
        members = [entry for entry in entries if entry.group == group]
        for label, dataset, values in [*_measured(members), *_means(members)]:
            rows[group, label].update({(dataset, name): value for name, value in zip(CELLS, values, strict=True)})
    groups = list(dict.fromkeys(group for group, _ in rows))
    keys = sorted(rows, key=lambda key: groups.index(key[0]))
    columns = pd.MultiIndex.from_product(
        [[*datasets, MEAN] if len(datasets) > 1 else datasets, CELLS], names=["dataset", None]
    )
    frame = pd.DataFrame([rows[key] for key in keys], index=pd.MultiIndex.from_tuples(keys, names=names))
    frame = frame.reindex(columns=columns)
    for dataset in columns.unique(0):
        frame[(dataset, "best")] = frame[(dataset, "best")].eq(True)
    return frame


def best_method(run: RunData, methods: Sequence[str] | None = None) -> str | None:
    """The fastest lossless of `methods` (default: all) if its paired ratio to every other one lies above 1.

    A ratio is over the turns that both completed, which may say otherwise than the speedups. AR measured again is no rival.
    """
    rivals = {
        name: run.summaries[name].speedup
        for name in methods or run.methods
        if _is_rival(run, name) and not math.isnan(run.summaries[name].speedup)
    }
    if len(rivals) < 2:
        return None
    best = max(rivals, key=rivals.__getitem__)
    others = [paired_prompts(run.measured[0], other, best) for other in rivals if other != best]
    ratios = ratios_of_sums([pairs[list(PAIR)].to_numpy(float) for pairs in others])
    return best if all(ratio.low > 1.0 for ratio in ratios) else None


def _measured(entries: Sequence[Entry]) -> list[tuple]:
    """(label, data set, values of `CELLS`) of every entry of a group."""
    cells = []
    for path in dict.fromkeys(entry.run.path for entry in entries):
        members = [entry for entry in entries if entry.run.path == path]
        best = best_method(members[0].run, [entry.method for entry in members])
        for entry in members:
            row = entry.run.summaries[entry.method]
            values = (row.speedup, *row.speedup_ci95, row.mat, row.eta, entry.method == best)
            cells.append((entry.label, entry.run.dataset, values))
    return cells


def _means(entries: Sequence[Entry]) -> list[tuple]:
    """(label, `MEAN`, values of `CELLS`) of the rows that have all data sets of a group; nothing for a single one."""
    runs = {entry.run.dataset: entry.run for entry in entries}
    by_label: dict[str | float, dict[str, str]] = {}
    for entry in entries:
        by_label.setdefault(entry.label, {})[entry.run.dataset] = entry.method
    whole = {label: methods for label, methods in by_label.items() if methods.keys() == runs.keys()}
    if len(runs) < 2 or not whole:
        return []
    values, draws = mean_ratios(
        [
            paired_cells(run.measured[0], BASELINE, [methods[dataset] for methods in whole.values()])
            for dataset, run in runs.items()
        ]
    )
    rivals = [
        column
        for column, methods in enumerate(whole.values())
        if all(_is_rival(runs[dataset], method) for dataset, method in methods.items()) and values[column] > 0
    ]
    rows = list(whole.values())
    place = _best_mean(runs, [rows[column] for column in rivals], [values[column] for column in rivals])
    best = None if place is None else rivals[place]
    cells = []
    for column, (label, methods) in enumerate(whole.items()):
        summaries = [run.summaries[methods[dataset]] for dataset, run in runs.items()]
        speedup = interval(float(values[column]), None if draws is None else draws[:, column])
        mat, eta = (sum(getattr(row, name) for row in summaries) / len(summaries) for name in ("mat", "eta"))
        cells.append((label, MEAN, (speedup.value, speedup.low, speedup.high, mat, eta, column == best)))
    return cells


def _best_mean(runs: Mapping[str, RunData], rivals: Sequence[Mapping[str, str]], means: Sequence[float]) -> int | None:
    """The place of the highest of `means` if it lies above every other one over the turns that all `rivals` completed.

    `runs` are those of a group by data set, `rivals` the rows that compete: their method by data set.
    """
    if len(rivals) < 2:
        return None
    best = max(range(len(rivals)), key=means.__getitem__)
    cells = []
    for dataset, run in runs.items():
        methods = [rival[dataset] for rival in rivals]
        cells.append(paired_cells(_common_turns(run.measured[0], {BASELINE, *methods}), BASELINE, methods))
    values, draws = mean_ratios(cells)
    if draws is None:
        return None
    ahead = (
        interval(values[best] - values[other], draws[:, best] - draws[:, other]).low > 0.0
        for other in range(len(rivals))
        if other != best
    )
    return best if all(ahead) else None


def _common_turns(turns: pd.DataFrame, methods: set[str]) -> pd.DataFrame:
    """The rows of `methods` of those turns that all of them completed."""
    own = turns[turns["method"].isin(methods)]
    return own[own.groupby(["prompt_id", "turn"], observed=True)["rounds"].transform("size") == len(methods)]


def _is_rival(run: RunData, method: str) -> bool:
    return run.methods[method]["lossless"] and method != run.baseline_again


def _ordered(datasets: Iterable[str]) -> list[str]:
    return sorted(datasets, key=lambda name: DATASETS.index(name) if name in DATASETS else len(DATASETS))
