"""Accepted length per prompt, by category (paper, Figures 4 and 9)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from talon_bench.errors import UsageError
from talon_bench.report.by_prompt import length_spread, pooled, prompt_sums
from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.load import RunData
from talon_bench.report.notes import name
from talon_bench.report.render import number


@matplotlib.rc_context(style.STYLE)
def accepted_length(runs: Sequence[RunData], suffix: str = "", looks: style.Looks | None = None) -> Plot:
    """A row of panels per drafting method: a dot per prompt, its MAT; in black the category's MAT with interval.

    Raises UsageError where no method drafted.
    """
    known = looks or style.looks(runs)
    sums = [prompt_sums(*run.measured) for run in runs]
    spreads = [length_spread(*run.measured) for run in runs]
    groups = [
        (place, *group)
        for place, (run, frame) in enumerate(zip(runs, sums, strict=True))
        for group in _categories(run, frame, runs)
    ]
    methods = list(
        dict.fromkeys(
            run.labels[method]
            for run, spread in zip(runs, spreads, strict=True)
            for method in run.methods
            if method in spread.index
        )
    )
    if not methods:
        raise UsageError(
            f"{name(runs[0])} has no method that drafts, expected one beside AR to draw its accepted length"
        )
    figure, axes = style.canvas(style.WIDTH, 0.5 + 1.15 * len(methods), len(methods), 1, sharex=True, sharey=True)
    for axis, label in zip(axes, methods, strict=True):
        for position, (place, _, prompts) in enumerate(groups):
            run, frame = runs[place], sums[place]
            method = next((method for method, text in run.labels.items() if text == label), None)
            if method in spreads[place].index:
                own = frame.loc[method]
                _strip(axis, position, own[own.index.isin(prompts)], known[label])
        axis.set_title(label, loc="left")
    top = max(axis.dataLim.ymax for axis in axes)
    axes[0].set_ylim(1 - 0.08 * (top - 1), 1.08 * top)
    for axis in axes:
        axis.set_xlim(-0.5, len(groups) - 0.5)
        axis.grid(visible=False, axis="x")
        for border in range(1, len(groups)):
            same = groups[border][0] == groups[border - 1][0]
            axis.axvline(border - 0.5, color="#dddddd" if same else style.GREY, linewidth=0.8, zorder=0.5)
    style.name_ticks(axes[-1], [text for _, text, _ in groups], (style.WIDTH - 0.6) / len(groups))
    figure.supylabel("tokens per verification (MAT of a prompt)", fontsize=9)
    pooled_key = Line2D([], [], color="black", marker="_", markersize=9, label="MAT of the category, 95 % interval")
    dot_key = Line2D([], [], color=style.GREY, marker="o", linestyle="none", label="a prompt, all its turns")
    style.legend(figure, {}, [dot_key, pooled_key])
    return Plot(f"accepted_length{suffix}", figure, _caption(runs, spreads))


def _categories(run: RunData, sums: pd.DataFrame, runs: Sequence[RunData]) -> list[tuple[str, pd.Index]]:
    """(tick text with n, prompts) of each category; data sets of one category go by the data set's name."""
    prompts = sums["category"].groupby(level="prompt_id", sort=False).first()
    owner = run.dataset if len({peer.target for peer in runs}) == 1 else name(run)
    kinds = dict.fromkeys(prompts)
    found = []
    for kind in kinds:
        members = prompts.index[prompts == kind]
        text = f"{owner}: {kind}" if len(kinds) > 1 else owner
        found.append((f"{text} ({len(members)})", members))
    return found


def _strip(axis: Axes, position: int, prompts: pd.DataFrame, look: dict) -> None:
    """Dots side by side in the order of the prompts, and the pooled value with its interval in the middle."""
    if prompts.empty:
        return
    count = len(prompts)
    places = position + 0.6 * ((np.arange(count) + 0.5) / count - 0.5)
    axis.plot(places, prompts["mat"], linestyle="none", marker="o", markersize=3, color=look["color"], alpha=0.6)
    total = pooled(prompts, "emitted")
    axis.vlines(position, total.low, total.high, color="black", linewidth=1.2, zorder=3)
    axis.plot(position, total.value, marker="_", markersize=9, color="black", zorder=3)


def _caption(runs: Sequence[RunData], spreads: Sequence[pd.DataFrame]) -> str:
    lines = []
    for run, spread in zip(runs, spreads, strict=True):
        texts = (
            f"{run.labels[method]} {number(spread.at[method, 'prompt sd'])} ({number(spread.at[method, 'round sd'])})"
            for method in run.methods
            if method in spread.index
        )
        lines.append(f"{name(run)}: {', '.join(texts)}.")
    return (
        "Accepted length per prompt by category, the number of prompts in brackets; black: MAT pooled over the category "
        "with its 95 % interval from two prompts on. Standard deviation over prompts (over verifications): "
        f"{' '.join(lines)} {context(runs)}"
    )
