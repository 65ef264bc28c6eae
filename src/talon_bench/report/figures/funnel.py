"""How deep accepted paths go (paper, Figure 3, summed over ranks)."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.axes import Axes

from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.funnel import depth_rates
from talon_bench.report.layers import tree_depth
from talon_bench.report.load import RunData
from talon_bench.report.notes import name

MIN_REACHED = 30  # verifications behind a conditional rate; below, its noise would be read as signal


def has_drafts(run: RunData) -> bool:
    """Whether a method of the run drafted anything that was verified."""
    return bool(tree_depth(run.measured[1]).any())


@matplotlib.rc_context(style.STYLE)
def funnel(run: RunData, suffix: str = "", looks: style.Looks | None = None) -> Plot:
    """Acceptance per depth and method: joint (path at least this deep), conditional (depth - 1 accepted)."""
    table = depth_rates(run.measured[1])
    known = looks or style.looks([run])
    figure, axes = style.canvas(style.WIDTH, 2.6, 1, 2, sharex=True)
    verifications: dict[str, int] = {}
    for method in (method for method in run.methods if (table["method"] == method).any()):
        rows, label = table[table["method"] == method], run.labels[method]
        rows = rows[rows["before"] > 0]
        verifications[label] = rows["before"].iloc[0]
        _draw(axes[0], rows, "joint", known[label])
        _draw(axes[1], rows[rows["before"] >= MIN_REACHED], "conditional", known[label])
    titles = ("accepted at least this deep", "accepted, given the depth before")
    bases = ("share of verifications", "share of paths that got there")
    for axis, title, base in zip(axes, titles, bases, strict=True):
        axis.set(title=title, xlabel="depth in the draft tree", ylabel=base, ylim=(0, 1.02))
        axis.xaxis.get_major_locator().set_params(integer=True)
    if not any(len(line.get_xdata()) for line in axes[1].lines):
        axes[1].text(0.5, 0.5, f"fewer than {MIN_REACHED} verifications", transform=axes[1].transAxes, ha="center")
    style.legend(figure, {label: known[label] for label in verifications})
    counts = "; ".join(f"{label} {count:,}" for label, count in verifications.items())
    caption = (
        f"Acceptance funnel of {name(run)}, counted before cutting at EOS and cap, bands: 95 % intervals over "
        f"prompts; conditional rates with fewer than {MIN_REACHED} verifications behind them are left out. "
        f"Verifications: {counts}. {context([run])}"
    )
    return Plot(f"funnel{suffix}", figure, caption)


def _draw(axis: Axes, rows: pd.DataFrame, rate: str, look: dict) -> None:
    axis.plot(rows["depth"], rows[rate], **look)
    axis.fill_between(
        rows["depth"], rows[f"{rate}_low"], rows[f"{rate}_high"], color=look["color"], alpha=style.BAND, linewidth=0
    )
