"""Draft passes against accepted length, with the speed that the cost model gives them (paper, Figures 6 and 11)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from talon_bench.metrics import BASELINE
from talon_bench.report.by_prompt import pooled, prompt_sums
from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.load import RunData
from talon_bench.report.notes import name
from talon_bench.report.render import number

ISO = "#b0b0b0"
POOLED = {"markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.6, "linestyle": "none", "zorder": 4}


def heads(runs: Sequence[RunData]) -> list[str]:
    """Kinds of head that methods of `runs` draft with, in line-up order."""
    return list(dict.fromkeys(kind for run in runs for kind in _kinds(run).values()))


@matplotlib.rc_context(style.STYLE)
def efficiency(runs: Sequence[RunData], head: str, suffix: str = "", looks: style.Looks | None = None) -> Plot:
    """MAT against eta of the methods on one `head`, a panel per run; small dots are prompts, large ones all of them.

    Dashed: the paper's oracle, MAT = eta, every draft pass giving a token. Grey: equal predicted speedup R, the lines
    MAT = R (1 + gamma eta), with gamma pooled over the run's methods on the head.
    """
    known = looks or style.looks(runs)
    runs = [run for run in runs if head in _kinds(run).values()]
    figure, axes = style.facets(len(runs), 2.3, "draft passes per verification, η", "tokens per verification, MAT")
    shown: dict[str, dict] = {}
    lines = []
    for axis, run in zip(axes, runs, strict=True):
        methods = [method for method, kind in _kinds(run).items() if kind == head]
        sums = prompt_sums(*run.measured)
        for method in methods:
            label = run.labels[method]
            shown[label] = known[label]
            _points(axis, sums.loc[method], known[label])
        gamma = head_gamma(run, head)
        _lines(axis, gamma)
        axis.set_title(run.dataset if len({peer.target for peer in runs}) == 1 else f"{run.target}\n{run.dataset}")
        speeds = (
            f"{run.labels[method]} {number(row.predicted_speedup)} ({number(row.speedup)})"
            for method, row in run.summaries.items()
            if method in methods
        )
        lines.append(f"{name(run)}: gamma {gamma:.3f}, {', '.join(speeds)}.")
    keys = [
        Line2D([], [], color="black", linestyle="--", label="oracle, MAT = η"),
        Line2D([], [], color=ISO, linewidth=0.8, label="equal predicted speedup"),
    ]
    style.legend(figure, shown, keys)
    caption = (
        f"Accepted length against draft passes on the {head} head: each prompt (small), all prompts with 95 % intervals "
        "(large). Grey lines: equal predicted speedup MAT / (1 + gamma η), gamma pooled over the methods shown; a line's "
        "speedup is its MAT at η = 0, written at its right end. The model takes a verification to cost as much as a plain pass. "
        f"Predicted (measured) speedup: {' '.join(lines)} {context(runs)}"
    )
    return Plot(f"efficiency{suffix}", figure, caption)


def head_gamma(run: RunData, head: str) -> float:
    """Time of a draft pass / of a plain pass of AR, sums over all methods of the run on `head`; nan without passes."""
    turns = run.measured[0]
    own = turns[turns["method"].isin([method for method, kind in _kinds(run).items() if kind == head])]
    plain = turns[turns["method"] == BASELINE]
    passes = own["draft_passes"].sum()
    if not passes or not plain["rounds"].sum():
        return float("nan")
    return float(own["draft_ms"].sum() / passes / (plain["verify_ms"].sum() / plain["rounds"].sum()))


def _kinds(run: RunData) -> dict[str, str]:
    """The kind of head of each method that drafts with one and has measured verifications."""
    measured = set(run.measured[1]["method"].unique())
    kinds = {method: settings.get("head") for method, settings in run.methods.items()}
    return {method: kind for method, kind in kinds.items() if kind and method in measured}


def _points(axis: Axes, prompts: pd.DataFrame, look: dict) -> None:
    axis.plot(
        prompts["draft_passes"] / prompts["rounds"],
        prompts["mat"],
        linestyle="none",
        marker=look["marker"],
        markersize=2.5,
        color=look["color"],
        alpha=0.45,
    )
    across, up = pooled(prompts, "draft_passes"), pooled(prompts, "emitted")
    axis.hlines(up.value, across.low, across.high, color=look["color"], zorder=3)
    axis.vlines(across.value, up.low, up.high, color=look["color"], zorder=3)
    axis.plot(across.value, up.value, **look, **POOLED)


def _lines(axis: Axes, gamma: float) -> None:
    """Oracle and iso-speedup lines over the whole panel, the speedup written where a line leaves it at the right."""
    right = 1.08 * max(1.0, *(float(np.max(line.get_xdata())) for line in axis.lines))
    top = 1.08 * max(float(np.max(line.get_ydata())) for line in axis.lines)
    axis.set(xlim=(0, right), ylim=(0, top))
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.grid(visible=False)
    axis.plot([0, max(right, top)], [0, max(right, top)], color="black", linestyle="--", linewidth=1.0, zorder=1)
    if not gamma >= 0:
        return
    steepest = 1 + gamma * right
    step = float(np.diff(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(0, top / steepest))[0])
    for speed in step * np.arange(1, top / step):
        end = speed * steepest
        axis.plot([0, right], [speed, end], color=ISO, linewidth=0.8, zorder=0.8)
        if end <= top:
            beside = {"transform": axis.transAxes, "va": "center", "fontsize": 7, "color": "#555555"}
            axis.text(1.02, end / top, f"{speed:g} x", **beside)
