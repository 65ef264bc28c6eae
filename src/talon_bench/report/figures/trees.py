"""Depth and width of the trees that TALON built."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import pandas as pd
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from talon_bench.report import layers
from talon_bench.report.by_prompt import pooled, prompt_sums
from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.load import RunData
from talon_bench.report.notes import name
from talon_bench.report.render import interval_text

POLICY = "talon"
RARE = 0.01  # share of the trees that must have a layer; below, a few trees would pass for a trend


def has_trees(run: RunData) -> bool:
    """Whether a method of the run builds trees of adaptive shape."""
    return bool(_methods(run))


@matplotlib.rc_context(style.STYLE)
def tree_depth(runs: Sequence[RunData], suffix: str = "", looks: style.Looks | None = None) -> Plot:
    """Share of verified trees of each depth, a panel per run, with 95 % intervals over prompts as bands."""
    known = looks or style.looks(runs)
    figure, axes = style.facets(
        len(runs), 1.9, "depth (= draft passes)", "share of verifications", sharex=True, sharey=True
    )
    means = []
    for axis, run in zip(axes, runs, strict=True):
        depths, sums = layers.tree_depths(run.measured[1]), prompt_sums(*run.measured)
        for method in _methods(run):
            rows, look = depths[depths["method"] == method], known[run.labels[method]]
            axis.plot(rows["depth"], rows["share"], **look)
            axis.fill_between(
                rows["depth"], rows["low"], rows["high"], color=look["color"], alpha=style.BAND, linewidth=0
            )
        texts = (f"{run.labels[method]} {_mean_depth(sums.loc[method])}" for method in _methods(run))
        means.append(f"{name(run)}: {', '.join(texts)}.")
        axis.set_title(_title(run, runs))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes[0].set_ylim(0, 1.05 * max(axis.dataLim.ymax for axis in axes))
    style.legend(figure, _shown(runs, known))
    caption = (
        "Depth of the trees that TALON built, with 95 % intervals over prompts (bands). Mean depth: "
        f"{' '.join(means)} {context(runs)}"
    )
    return Plot(f"tree_depth{suffix}", figure, caption)


@matplotlib.rc_context(style.STYLE)
def tree_width(runs: Sequence[RunData], suffix: str = "", looks: style.Looks | None = None) -> Plot:
    """Nodes per layer, a panel per run: mean over the trees that have the layer, 10th to 90th percentile as a band."""
    known = looks or style.looks(runs)
    figure, axes = style.facets(len(runs), 1.9, "layer (depth)", "nodes in the layer", sharex=True, sharey=True)
    trees = []
    for axis, run in zip(axes, runs, strict=True):
        widths = layers.layer_widths(run.measured[1])
        for method in _methods(run):
            rows, look = widths[widths["method"] == method], known[run.labels[method]]
            rows = rows[rows["trees"] >= RARE * rows["trees"].max()]
            axis.plot(rows["depth"], rows["mean"], **look)
            axis.fill_between(
                rows["depth"], rows["low"], rows["high"], color=look["color"], alpha=style.BAND, linewidth=0
            )
        counts = {method: widths.loc[widths["method"] == method, "trees"].max() for method in _methods(run)}
        trees.append(
            f"{name(run)}: {', '.join(f'{run.labels[method]} {count:,}' for method, count in counts.items())}."
        )
        axis.set(title=_title(run, runs), yscale="log")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set_yticks([1, 2, 5, 10, 20, 50, 100])
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_locator(NullLocator())
    axes[0].set_ylim(0.9, 1.2 * max(axis.dataLim.ymax for axis in axes))
    style.legend(figure, _shown(runs, known))
    caption = (
        "Width of the trees that TALON built: mean nodes of a layer over the trees that have it, band from the 10th to "
        f"the 90th percentile of the trees; layers that fewer than {100 * RARE:g} % of the trees have are left out. "
        f"Trees: {' '.join(trees)} {context(runs)}"
    )
    return Plot(f"tree_width{suffix}", figure, caption)


def _mean_depth(sums: pd.DataFrame) -> str:
    mean = pooled(sums, "depth")
    return interval_text(mean.value, mean.low, mean.high)


def _methods(run: RunData) -> list[str]:
    rounds = run.measured[1]
    drafted = set(rounds.loc[layers.tree_depth(rounds) > 0, "method"].unique())
    return [name for name, settings in run.methods.items() if settings["policy"] == POLICY and name in drafted]


def _shown(runs: Sequence[RunData], looks: style.Looks) -> dict[str, dict]:
    labels = dict.fromkeys(run.labels[method] for run in runs for method in _methods(run))
    return {label: looks[label] for label in labels}


def _title(run: RunData, runs: Sequence[RunData]) -> str:
    """The data set, with the target where the panels have several."""
    return run.dataset if len({peer.target for peer in runs}) == 1 else f"{run.target}\n{run.dataset}"
