"""Draft efficiency: what a verification gains (MAT), what it costs (eta, gamma), and what the cost model makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from talon_bench.metrics import decode_tokens
from talon_bench.report.groups import marked, row_groups
from talon_bench.report.load import RunData
from talon_bench.report.render import interval_text, number
from talon_bench.report.sweeps import families
from talon_bench.stats import Estimate, ratios_of_sums

EFFICIENCY_NOTE = (
    "measured / predicted: 1 where a verification of a tree takes as long as a plain pass and nothing happens "
    "between passes; the cost model charges neither. gamma is n/a for a method without draft passes."
)


def efficiency_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """One row per run x method that is not plain decoding: plain line-ups, then sweeps (`sweeps.families`); numbers.

    Row headings tell runs of one family apart. Intervals of MAT and eta are bootstrap intervals over prompts of a ratio of
    sums over the measured turns.
    """
    rows = []
    for group, run in _grouped(runs):
        for method, (mat, eta) in _per_verification(run).items():
            row = run.summaries[method]
            cells = {"target": group, "dataset": run.dataset, "method": marked(run, method)}
            cells |= {"MAT": row.mat, "MAT low": mat.low, "MAT high": mat.high}
            cells |= {"eta": row.eta, "eta low": eta.low, "eta high": eta.high, "gamma": row.gamma}
            cells |= {"predicted": row.predicted_speedup, "speedup": row.speedup}
            cells |= {"CI low": row.speedup_ci95[0], "CI high": row.speedup_ci95[1]}
            rows.append(cells | {"measured/predicted": row.speedup / row.predicted_speedup})
    return pd.DataFrame(rows)


def efficiency_text(table: pd.DataFrame) -> pd.DataFrame:
    """`efficiency_table` for readers: every number as text, intervals beside their estimates."""
    text = table[["target", "dataset", "method"]].copy()
    places = table[["target", "dataset"]]
    text.loc[(places == places.shift()).all(axis=1), ["target", "dataset"]] = ""
    for heading, value, low, high in (
        ("MAT [95 % CI]", "MAT", "MAT low", "MAT high"),
        ("η [95 % CI]", "eta", "eta low", "eta high"),
    ):
        text[heading] = [interval_text(*cells) for cells in table[[value, low, high]].itertuples(index=False)]
    text["gamma"] = [number(value, 3) for value in table["gamma"]]
    text["predicted speedup"] = [number(value) for value in table["predicted"]]
    speedups = table[["speedup", "CI low", "CI high"]].itertuples(index=False)
    text["measured speedup [95 % CI]"] = [interval_text(*cells) for cells in speedups]
    text["measured / predicted"] = [number(value) for value in table["measured/predicted"]]
    return text


def _grouped(runs: Sequence[RunData]) -> list[tuple[str, RunData]]:
    """(row heading, run), family by family; sweeps without a method in common may share a heading."""
    found = []
    for field, members in families(runs).items():
        kinds = [[run.labels[name] for name in _drafting(run)] for run in members] if field else None
        found += zip(row_groups(members, kinds), members, strict=True)
    return found


def _drafting(run: RunData) -> list[str]:
    return [name for name, own in run.methods.items() if own["policy"] != "ar"]


def _per_verification(run: RunData) -> dict[str, tuple[Estimate, Estimate]]:
    """MAT and eta of each drafting method that measured something, with intervals over prompts."""
    turns = run.measured[0]
    frame = turns.assign(tokens=decode_tokens(turns), method=turns["method"].astype(str))
    sums = frame.groupby(["method", "prompt_id"], observed=True)[["tokens", "draft_passes", "rounds"]].sum()
    found = sums.index.unique("method")
    methods = [name for name in _drafting(run) if name in found]
    pairs = []
    for name in methods:
        tokens, passes, rounds = (column for _, column in sums.loc[name].astype(float).items())
        ones = np.ones(len(rounds))
        pairs += [np.column_stack([top, ones, rounds, ones]) for top in (tokens, passes)]
    estimates = ratios_of_sums(pairs)
    return dict(zip(methods, zip(estimates[::2], estimates[1::2], strict=True), strict=True))
