"""One look for all figures: print sizes, colours that colour-blind readers can tell apart (Okabe-Ito), shared layout.

A colour stands for a method, the same in all figures of a set of runs. Variants of a sweep take theirs from a sequential
map, in the order of their values. What is no method (parts of a round, places in a tree) has colours of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from talon_bench.metrics import BASELINE
from talon_bench.report.load import RunData
from talon_bench.report.sweeps import variants

STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}
WIDTH = 7.2  # inches, the text width of a page: printed as it is, 8 points stay 8 points
GREY = "#7f7f7f"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
BAND = 0.15  # opacity of an interval around a line
SMALL = 8  # font size of ticks that are names, and of annotations

Looks = Mapping[str, Mapping[str, Any]]


def looks(runs: Sequence[RunData]) -> dict[str, dict[str, Any]]:
    """Colour and marker by label; AR is no series, AR measured again is grey."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        ordered = _sequential(run)
        for method, label in run.labels.items():
            if method == BASELINE or label in found:
                continue
            place = sum(look["color"] in COLOURS for look in found.values())
            colour = GREY if method == run.baseline_again else ordered.get(method, COLOURS[place % len(COLOURS)])
            found[label] = {"color": colour, "marker": MARKERS[len(found) % len(MARKERS)]}
    return found


def canvas(width: float, height: float, rows: int, columns: int, **share: Any) -> tuple[Figure, list[Axes]]:
    """A figure of `width` x `height` inches with its axes in a list, on Agg, free of any global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **share)
    return figure, list(axes.flat)


def facets(
    count: int, height: float, across: str, up: str, *, most: int = 3, **share: Any
) -> tuple[Figure, list[Axes]]:
    """`count` small panels of `height` inches, at most `most` in a row.

    `across` and `up` name the axes: below the panels that have none below them, and at the left of each row.
    """
    columns = min(count, most)
    rows = math.ceil(count / columns)
    width = WIDTH if columns == most else 3.4 + 1.3 * columns
    figure, axes = canvas(width, 0.4 + height * rows, rows, columns, **share)
    for axis in axes[count:]:
        axis.remove()
    for axis in axes[max(0, count - columns) : count]:
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(across, fontsize=SMALL)
    for axis in axes[:count:columns]:
        axis.set_ylabel(up, fontsize=SMALL)
    return figure, axes[:count]


def legend(figure: Figure, looks: Looks, extra: Sequence[Artist] = ()) -> None:
    """One legend under the figure, which grows by its height: methods in line-up order, then `extra`, if any."""
    handles = [*(Line2D([], [], label=label, **look) for label, look in looks.items()), *extra]
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.6 + 0.065 * longest))))
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.17 * math.ceil(len(handles) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def name_ticks(axis: Axes, names: Sequence[str], inches: float) -> None:
    """Names as x ticks, tilted where one is longer than the `inches` it has."""
    long = max((len(name) for name in names), default=0) * 0.075 > inches
    tilt = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axis.set_xticks(range(len(names)), names, fontsize=SMALL, **tilt)


def _sequential(run: RunData) -> dict[str, str]:
    """Colours of a sweep's variants, dark to light with the value; light ends that vanish on paper are left out."""
    colours = matplotlib.colormaps["viridis"]
    found = {}
    for base in dict.fromkeys(variant.base for variant in variants(run)):
        methods = [variant.method for variant in variants(run) if variant.base == base]
        steps = [0.85 * place / max(1, len(methods) - 1) for place in range(len(methods))]
        found |= {method: matplotlib.colors.to_hex(colours(step)) for method, step in zip(methods, steps, strict=True)}
    return found
