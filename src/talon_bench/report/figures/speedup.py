"""Measured speedup per method and data set (paper, Tables 1 and 3 as a picture)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib

from talon_bench.metrics import BASELINE
from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.groups import row_groups
from talon_bench.report.load import RunData


@matplotlib.rc_context(style.STYLE)
def speedup(runs: Sequence[RunData], suffix: str = "", looks: style.Looks | None = None) -> Plot:
    """Points with 95 % intervals, a panel per target, a line at 1 (AR); AR measured again is grey."""
    groups = row_groups(runs)
    panels = list(dict.fromkeys(groups))
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    known = looks or style.looks(runs)
    shown = {label: known[label] for label in style.looks(runs)}
    labels = list(shown)
    width = min(max(4.6, 1.0 + 0.28 * len(datasets) * (len(labels) + 1)), style.WIDTH)
    figure, axes = style.canvas(width, 0.3 + 2.2 * len(panels), len(panels), 1, sharex=True)
    for axis, panel in zip(axes, panels, strict=True):
        axis.axhline(1, color="black", linewidth=0.9, zorder=1.5)
        for run in (run for run, group in zip(runs, groups, strict=True) if group == panel):
            for method, row in run.summaries.items():
                if method == BASELINE:
                    continue
                label = run.labels[method]
                place = datasets.index(run.dataset) + 0.8 * ((labels.index(label) + 0.5) / len(labels) - 0.5)
                axis.vlines(place, *row.speedup_ci95, color=shown[label]["color"])
                axis.plot(place, row.speedup, linestyle="none", **shown[label])
        axis.set(title=panel, ylabel="speedup over AR", xlim=(-0.5, len(datasets) - 0.5))
        axis.set_ylim(bottom=0)
        style.name_ticks(axis, datasets, (width - 0.8) / len(datasets))
        axis.grid(visible=False, axis="x")
        for border in range(1, len(datasets)):
            axis.axvline(border - 0.5, color=style.STYLE["grid.color"], linewidth=0.8, zorder=0.5)
    style.legend(figure, shown)
    caption = "Speedup over autoregressive decoding (line at 1), with 95 % intervals from two prompts on.\n"
    return Plot(f"speedup{suffix}", figure, caption + context(runs))
