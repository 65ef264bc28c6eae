"""Tables of rows against data sets: what a method measured there, its mean over them, and which row is the best.

The main table and the ablations are such tables; they differ in what a row stands for (`Entry`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from talon_bench.metrics import BASELINE, EAGER, PAIR, paired_cells, paired_prompts
from talon_bench.report.load import RunData
from talon_bench.stats import Estimate, interval, mean_ratios, ratios_of_sums

CELLS = ("speedup", "ci_low", "ci_high", "mat", "eta", "best")
SPEEDUPS = {BASELINE: "speedup [95 % CI]", EAGER: "speedup vs AR eager [95 % CI]"}
"""What readers call a speedup, by its baseline. The second stands only where its baseline was measured."""
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


def speedup_columns(baseline: str) -> tuple[str, str, str]:
    """The columns of the speedup over `baseline` and the ends of its interval."""
    over = "" if baseline == BASELINE else f" over {baseline}"
    return f"speedup{over}", f"ci_low{over}", f"ci_high{over}"


def cell_table(entries: Sequence[Entry], names: Sequence[str]) -> pd.DataFrame:
    """Index `names` (group, label) in the order of `entries`, columns (data set, one of `CELLS`).

    A data set with runs of another baseline of `SPEEDUPS` has the `speedup_columns` of that one too. `best` is the fastest
    lossless method of a column and group where it is separated from all others. With more than one data set a column
    `MEAN` follows.
    """
    rows: dict[tuple[str, str | float], dict] = {}
    for entry in entries:
        rows[entry.group, entry.label] = {}
    datasets = _ordered(dict.fromkeys(entry.run.dataset for entry in entries))
    for group in dict.fromkeys(entry.group for entry in entries):
        members = [entry for entry in entries if entry.group == group]
        for label, dataset, values in [*_measured(members), *_means(members)]:
            rows[group, label].update({(dataset, name): value for name, value in values.items()})
    groups = list(dict.fromkeys(group for group, _ in rows))
    keys = sorted(rows, key=lambda key: groups.index(key[0]))
    filled = {place for row in rows.values() for place in row}
    others = [name for baseline in SPEEDUPS if baseline != BASELINE for name in speedup_columns(baseline)]
    columns = pd.MultiIndex.from_tuples(
        [
            (dataset, name)
            for dataset in ([*datasets, MEAN] if len(datasets) > 1 else datasets)
            for name in (*CELLS, *others)
            if name in CELLS or (dataset, name) in filled
        ],
        names=["dataset", None],
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


def _measured(entries: Sequence[Entry]) -> list[tuple[str | float, str, dict]]:
    """(label, data set, value by column) of every entry of a group."""
    cells = []
    for path in dict.fromkeys(entry.run.path for entry in entries):
        members = [entry for entry in entries if entry.run.path == path]
        run = members[0].run
        best = best_method(run, [entry.method for entry in members])
        for entry in members:
            row = run.summaries[entry.method]
            ratios = {baseline: by_method[entry.method] for baseline, by_method in run.speedups.items()}
            cells.append((entry.label, run.dataset, _cell(ratios, row.mat, row.eta, entry.method == best)))
    return cells


def _means(entries: Sequence[Entry]) -> list[tuple[str | float, str, dict]]:
    """(label, `MEAN`, value by column) of the rows that have all data sets of a group; nothing for a single one."""
    runs = {entry.run.dataset: entry.run for entry in entries}
    by_label: dict[str | float, dict[str, str]] = {}
    for entry in entries:
        by_label.setdefault(entry.label, {})[entry.run.dataset] = entry.method
    whole = {label: methods for label, methods in by_label.items() if methods.keys() == runs.keys()}
    if len(runs) < 2 or not whole:
        return []
    rows = list(whole.values())
    baselines = [name for name in SPEEDUPS if all(name in run.speedups for run in runs.values())]
    ratios = {baseline: _mean_speedups(runs, rows, baseline) for baseline in baselines}
    values = [ratio.value for ratio in ratios[BASELINE]]
    rivals = [
        column
        for column, methods in enumerate(rows)
        if all(_is_rival(runs[dataset], method) for dataset, method in methods.items()) and values[column] > 0
    ]
    place = _best_mean(runs, [rows[column] for column in rivals], [values[column] for column in rivals])
    best = None if place is None else rivals[place]
    cells = []
    for column, (label, methods) in enumerate(whole.items()):
        summaries = [run.summaries[methods[dataset]] for dataset, run in runs.items()]
        mat, eta = (sum(getattr(row, name) for row in summaries) / len(summaries) for name in ("mat", "eta"))
        own = {baseline: means[column] for baseline, means in ratios.items()}
        cells.append((label, MEAN, _cell(own, mat, eta, column == best)))
    return cells


def _mean_speedups(runs: Mapping[str, RunData], rows: Sequence[Mapping[str, str]], baseline: str) -> list[Estimate]:
    """The mean over data sets of each row's speedup over `baseline`; `rows` hold their method by data set."""
    values, draws = mean_ratios(
        [
            paired_cells(run.measured[0], baseline, [methods[dataset] for methods in rows])
            for dataset, run in runs.items()
        ]
    )
    return [interval(float(value), None if draws is None else draws[:, row]) for row, value in enumerate(values)]


def _cell(ratios: Mapping[str, Estimate], mat: float, eta: float, best: bool) -> dict[str, float | bool]:
    """Values by column; `ratios` are speedups by baseline."""
    found: dict[str, float | bool] = {"mat": mat, "eta": eta, "best": best}
    for baseline, ratio in ratios.items():
        found |= zip(speedup_columns(baseline), (ratio.value, ratio.low, ratio.high), strict=True)
    return found


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
