"""Which places of a draft tree get accepted, by layer and rank (paper, Figures 3 and 10)."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from talon_bench.errors import UsageError
from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.funnel import place_rates
from talon_bench.report.layers import layer_counts, layer_widths
from talon_bench.report.load import RunData
from talon_bench.report.notes import name

SCALE = LogNorm(0.001, 1)  # fixed, so that two figures can be laid side by side
NEVER, OUTSIDE, WIDTH_LINE = "#ffffff", "#d8d8d8", "#D55E00"
COLOURS = matplotlib.colormaps["YlGnBu"].with_extremes(under=NEVER, bad=OUTSIDE)
RANK_TICKS = (1, 2, 3, 5, 10, 20, 40, 80)


def has_places(run: RunData) -> bool:
    """Whether a method of the run verified trees in which a layer has more than one node."""
    return bool(layer_counts(run.measured[1])["width"].gt(1).any())


@matplotlib.rc_context(style.STYLE)
def heatmap(run: RunData, suffix: str = "") -> Plot:
    """A panel per method with trees: acceptance by layer (down) and rank in the layer (across, logarithmic).

    Ranks are counted from 1 here. A chain has one rank and no panel. Raises UsageError where no method built a tree.
    """
    places, widths = place_rates(run.measured[1]), layer_widths(run.measured[1])
    methods = _methods(run, places)
    if not methods:
        raise UsageError(f"{name(run)} has no draft tree to map, expected a method that drafts several nodes a layer")
    places = places[places["method"].isin(methods)]
    deepest, ranks = int(places["depth"].max()), int(places["rank"].max()) + 1
    figure, axes = style.facets(
        len(methods),
        0.55 + min(max(0.13 * deepest, 0.9), 1.6),
        "rank in the layer, by path probability",
        "layer (depth)",
        most=2,
        sharex=True,
        sharey=True,
    )
    for axis, method in zip(axes, methods, strict=True):
        _panel(axis, places[places["method"] == method], widths[widths["method"] == method])
        axis.set_title(run.labels[method])
        _frame(axis, deepest, ranks)
    bar = figure.colorbar(ScalarMappable(SCALE, COLOURS), ax=axes, pad=0.02, aspect=30)
    bar.set_ticks([0.001, 0.01, 0.1, 1], labels=["0.1 %", "1 %", "10 %", "100 %"])
    bar.set_label("accepted,\nshare of verifications", fontsize=style.SMALL)
    keys = [
        Line2D([], [], color=WIDTH_LINE, label="mean width of the layer"),
        Patch(facecolor=NEVER, edgecolor=style.GREY, label="verified, accepted in < 0.1 %"),
        Patch(facecolor=OUTSIDE, label="in no verified tree"),
    ]
    style.legend(figure, {}, keys)
    verifications = places.groupby("method", sort=False)["rounds"].first()
    counts = "; ".join(f"{run.labels[method]} {verifications[method]:,}" for method in methods)
    caption = (
        f"Acceptance by layer and rank on {name(run)}: share of verifications in which the node of this rank was on the "
        f"accepted path, counted before cutting at EOS and cap; a layer's cells add up to its joint rate in the funnel. "
        f"The line is the mean width of the layer over the trees that have it. Verifications: {counts}. {context([run])}"
    )
    return Plot(f"heatmap{suffix}", figure, caption)


def _methods(run: RunData, places: pd.DataFrame) -> list[str]:
    widest = places.groupby("method")["rank"].max()
    return [method for method in run.methods if widest.get(method, 0) > 0]


def _panel(axis: Axes, places: pd.DataFrame, widths: pd.DataFrame) -> None:
    """Cells of one method; ranks on a logarithmic axis, so cell r reaches from r - 1/2 to r + 1/2."""
    shape = (int(places["depth"].max()), int(places["rank"].max()) + 1)
    share = np.full(shape, np.nan)
    share[places["depth"] - 1, places["rank"]] = places["share"]
    edges = np.arange(shape[1] + 1) + 0.5, np.arange(shape[0] + 1) + 0.5
    axis.set_facecolor(OUTSIDE)
    # A logarithmic scale takes 0 for missing; the smallest number below the scale is drawn as "never" instead.
    cells = np.ma.masked_invalid(np.where(share == 0, np.finfo(float).tiny, share))
    axis.pcolormesh(*edges, cells, norm=SCALE, cmap=COLOURS, edgecolors="none", rasterized=True)
    line = np.repeat(widths["mean"].to_numpy() + 0.5, 2)
    depth = np.repeat(widths["depth"].to_numpy(), 2) + np.tile([-0.5, 0.5], len(widths))
    axis.plot(line, depth, color=WIDTH_LINE, linewidth=1.2)


def _frame(axis: Axes, deepest: int, ranks: int) -> None:
    axis.set(xscale="log", xlim=(0.5, ranks + 0.5), ylim=(deepest + 0.5, 0.5))
    ticks = [tick for tick in RANK_TICKS if tick <= ranks]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.set_yticks(range(1, deepest + 1, 1 + deepest // 10))
    axis.grid(visible=False)
    axis.spines[["top", "right"]].set_visible(True)
    axis.tick_params(labelsize=style.SMALL)
