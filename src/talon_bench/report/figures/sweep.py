"""Speed against one setting of a method (paper, Figures 7, 12 and 13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from talon_bench.metrics import BASELINE
from talon_bench.report.by_prompt import pooled, prompt_sums
from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.groups import row_groups
from talon_bench.report.load import RunData
from talon_bench.report.render import interval_text, number
from talon_bench.report.sweeps import variants

COLUMNS = ["target", "dataset", "base", "value", "method", "label", "speedup", "speedup_low", "speedup_high"]
LENGTHS = ("mat", "mat_low", "mat_high", "eta", "eta_low", "eta_high", "tokens_per_second", "prompts")
TITLES = {"alpha": "gate alpha", "budget": "budget (nodes, root included)", "init_layers": "layers of plain top-K"}
TITLES |= {"root_top_k": "children of the root"}
DRAWN = {"speedup": "speedup over AR", "mat": "tokens per verification, MAT", "eta": "draft passes, η"}
SPREAD = 8  # a setting whose values span more than this factor gets a logarithmic axis
LABEL_LETTERS = 22  # of a line of the row heading beside a panel, which is about 1.5 inches high


def sweep_table(runs: Sequence[RunData], field: str) -> pd.DataFrame:
    """One row per run and variant of `field`: speedup, MAT and eta with 95 % intervals over prompts, by value.

    `target` is the run's row heading (`groups.row_groups`), so no two runs share target, data set and base.
    """
    rows = []
    for group, run in zip(_groups(runs), runs, strict=True):
        sums = prompt_sums(*run.measured)
        measured = sums.index.unique("method")
        for variant in variants(run):
            if variant.field != field or variant.method not in measured:
                continue
            row, own = run.summaries[variant.method], sums.loc[variant.method]
            mat, eta = pooled(own, "emitted"), pooled(own, "draft_passes")
            head = (group, run.dataset, variant.base, variant.value, variant.method, run.labels[variant.method])
            lengths = (mat.value, mat.low, mat.high, eta.value, eta.low, eta.high)
            rows.append((*head, row.speedup, *row.speedup_ci95, *lengths, row.tokens_per_second, row.prompts))
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *LENGTHS])
    return frame.sort_values("value", kind="stable", ignore_index=True)


@matplotlib.rc_context(style.STYLE)
def sweep(runs: Sequence[RunData], field: str) -> Plot:
    """A row per target and data set: speedup over AR, MAT and eta against the setting, with 95 % intervals as bands.

    Runs that sweep the same setting of other methods on the same data set share the row; runs that differ in another
    setting, or repeat each other, have one each. Methods of the line-up that are not varied are horizontal lines.
    """
    table = sweep_table(runs, field)
    places = [(group, run.dataset) for group, run in zip(_groups(runs), runs, strict=True)]
    panels = list(dict.fromkeys(places))
    several = len({group for group, _ in panels}) > 1
    looks = {
        base: {"color": style.COLOURS[place % 7], "marker": style.MARKERS[place % 9]}
        for place, base in enumerate(dict.fromkeys(table["base"]))
    }
    fixed: dict[str, dict] = {}
    figure, axes = style.canvas(style.WIDTH, 0.3 + 2.0 * len(panels), len(panels), 3, sharex=True)
    for row, (group, dataset) in enumerate(panels):
        own = table[(table["target"] == group) & (table["dataset"] == dataset)]
        speed, *_ = trio = axes[3 * row : 3 * row + 3]
        speed.axhline(1, color="black", linewidth=0.9, zorder=1)
        for axis, (column, title) in zip(trio, DRAWN.items(), strict=True):
            for base in dict.fromkeys(own["base"]):
                _line(axis, own[own["base"] == base], column, looks[base])
            axis.set_title(title)
        for run in (run for run, place in zip(runs, places, strict=True) if place == (group, dataset)):
            _references(speed, run, fixed)
        for axis in trio:
            top = axis.dataLim.ymax
            axis.set_ylim(0, 1.05 * top if 0 < top < math.inf else 1)
            _values(axis, sorted(set(table["value"])))
        speed.set_ylabel("\n".join([*wrap(group, LABEL_LETTERS), dataset]) if several else dataset)
    for axis in axes[-3:]:
        axis.set_xlabel(TITLES.get(field, field), fontsize=style.SMALL)
    keys = [Line2D([], [], label=f"{label} (fixed)", **look) for label, look in fixed.items()]
    style.legend(figure, looks, keys)
    return Plot(f"sweep_{field}", figure, _caption(runs, field, table))


def _line(axis: Axes, rows: pd.DataFrame, column: str, look: dict) -> None:
    axis.plot(rows["value"], rows[column], **look)
    low, high = rows[f"{column}_low"], rows[f"{column}_high"]
    axis.fill_between(rows["value"], low, high, color=look["color"], alpha=style.BAND, linewidth=0)


def _references(axis: Axes, run: RunData, fixed: dict[str, dict]) -> None:
    """Lines of the drafting methods that the sweep leaves alone, with their intervals."""
    varied = {variant.method for variant in variants(run)}
    for method, row in run.summaries.items():
        if method in varied or method in (BASELINE, run.baseline_again) or row.speedup != row.speedup:
            continue
        look = fixed.setdefault(run.labels[method], {"color": style.COLOURS[-1 - len(fixed) % 5], "linestyle": ":"})
        axis.axhline(row.speedup, **look)
        axis.axhspan(*row.speedup_ci95, color=look["color"], alpha=style.BAND / 2, linewidth=0)


def _values(axis: Axes, values: list[float]) -> None:
    """The measured values as ticks, as many as fit; logarithmic where they span more than `SPREAD`."""
    if not values:
        return
    places = np.array(values)
    if values[0] > 0 and values[-1] > SPREAD * values[0]:
        axis.set_xscale("log")
        places = np.log(places)
    places = (places - places[0]) / (max(np.ptp(places), 1e-9))
    halves = [(0.05 + 0.033 * len(f"{value:g}")) / 1.7 for value in values]  # of the axis, about 1.7 inches wide
    ticks, end = [values[-1]], -1.0
    for value, place, half in zip(values[:-1], places, halves, strict=False):
        if place - half > end and place + half < 1 - halves[-1]:
            ticks.append(value)
            end = place + half
    axis.set_xticks(sorted(ticks))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="x", labelsize=style.SMALL)


def _caption(runs: Sequence[RunData], field: str, table: pd.DataFrame) -> str:
    bests = []
    for (group, dataset, base), rows in table.dropna(subset="speedup").groupby(
        ["target", "dataset", "base"], sort=False
    ):
        best = rows.loc[rows["speedup"].idxmax()]
        speed = interval_text(best["speedup"], best["speedup_low"], best["speedup_high"])
        speed += f", {number(best['tokens_per_second'], 1)} tokens/s"
        bests.append(f"{base} on {group} / {dataset} at {best['value']:g} ({speed})")
    baselines = "; ".join(
        f"{group} / {run.dataset} {number(run.summaries[BASELINE].tokens_per_second, 1)} tokens/s"
        for group, run in zip(_groups(runs), runs, strict=True)
    )
    return (
        f"Speedup over AR (line at 1) against {field}, bands: 95 % intervals over prompts, of each value on "
        f"its own. Highest: {'; '.join(bests) or 'none measured'}. AR: {baselines}. {context(runs)}"
    )


def _groups(runs: Sequence[RunData]) -> list[str]:
    """The row heading of each run; runs that sweep different methods may share one."""
    return row_groups(runs, [{variant.base for variant in variants(run)} for run in runs])
