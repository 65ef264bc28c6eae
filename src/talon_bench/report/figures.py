"""Figures of finished runs in one print-readable, colour-blind-safe style (Okabe-Ito), with captions.

speedup       measured speedup per method and data set with 95 % intervals
verify_cost   time of a verification against its number of tokens
funnel        how deep accepted paths go, jointly and conditionally
round_time    where the time of a verification round goes
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from talon_bench.errors import UsageError
from talon_bench.metrics import BASELINE, accepted_by_depth
from talon_bench.report.load import RunData
from talon_bench.report.notes import name, notes, settings
from talon_bench.report.tables import number, row_groups

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
GREY = "#7f7f7f"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
PARTS = {"draft": "#0072B2", "verify": "#E69F00", "other": "#999999"}
MIN_REACHED = 30  # verifications behind a conditional rate; below, its noise would be read as signal


@dataclass(frozen=True)
class Plot:
    """A figure, its caption and the stem of its files."""

    stem: str
    figure: Figure
    caption: str

    def png(self) -> bytes:
        """The figure as PNG bytes, for a notebook."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=STYLE["savefig.dpi"])
        return buffer.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Writes stem.png, stem.pdf and the caption as stem.txt; undated, so equal data give equal files."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.stem}.{kind}" for kind in ("png", "pdf", "txt")]
        paths[0].write_bytes(self.png())
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(paths[1], metadata={"CreationDate": None})
        paths[2].write_text(self.caption + "\n", encoding="utf-8")
        return paths


def all_plots(runs: Sequence[RunData], folder: Path | None = None) -> list[Plot]:
    """Every figure that `runs` allow, and one of the `verify_cost*.json` files at or below `folder`."""
    plots = [speedup(runs)]
    for run, stem in zip(runs, _stems(runs), strict=True):
        plots += [funnel(run, stem), round_time(run, stem)]
    costs = sorted(folder.rglob("verify_cost*.json")) if folder else []
    return [*plots, verify_cost(costs)] if costs else plots


@matplotlib.rc_context(STYLE)
def speedup(runs: Sequence[RunData]) -> Plot:
    """Points with 95 % intervals, a panel per target, a line at 1 (AR); AR measured again is grey."""
    groups = row_groups(runs)
    panels = list(dict.fromkeys(groups))
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    looks = _looks(runs)
    labels = list(looks)
    width = min(max(4.6, 1.0 + 0.28 * len(datasets) * (len(labels) + 1)), 14)
    figure, axes = _canvas(width, 0.7 + 2.2 * len(panels), len(panels), 1)
    for axis, panel in zip(axes, panels, strict=True):
        axis.axhline(1, color="black", linewidth=0.9, zorder=1.5)
        for run in (run for run, group in zip(runs, groups, strict=True) if group == panel):
            for method, row in run.summaries.items():
                if method == BASELINE:
                    continue
                label = run.labels[method]
                place = datasets.index(run.dataset) + 0.8 * ((labels.index(label) + 0.5) / len(labels) - 0.5)
                low, high = row.speedup_ci95
                axis.vlines(place, low, high, color=looks[label]["color"])
                axis.plot(place, row.speedup, linestyle="none", **looks[label])
        axis.set(title=panel, ylabel="speedup over AR", xlim=(-0.5, len(datasets) - 0.5))
        axis.set_xticks(range(len(datasets)), datasets)
        axis.grid(visible=False, axis="x")
        for border in range(1, len(datasets)):
            axis.axvline(border - 0.5, color=STYLE["grid.color"], linewidth=0.8, zorder=0.5)
    _legend(figure, looks)
    caption = "Speedup over autoregressive decoding (line at 1), with 95 % intervals from two prompts on.\n"
    return Plot("speedup", figure, caption + "\n".join(notes(runs)))


@matplotlib.rc_context(STYLE)
def verify_cost(sources: Sequence[str | os.PathLike[str] | Mapping]) -> Plot:
    """Median time of a target pass against its tokens, 10th to 90th percentile as a band, a curve a source.

    A source is a `verify_cost.json` or its content: {"target", "dtype", "threads", "context", "rows":
    [{"tokens", "ms_median", "ms_p10", "ms_p90"}]}. Raises UsageError where keys are missing.
    """
    figure, (axis,) = _canvas(4.6, 3.0, 1, 1)
    lines = []
    for source, colour, marker in zip(sources, cycle(COLOURS), cycle(MARKERS), strict=False):
        curve = source if isinstance(source, Mapping) else json.loads(Path(source).read_text(encoding="utf-8"))
        try:
            columns = [[row[key] for row in curve["rows"]] for key in ("tokens", "ms_median", "ms_p10", "ms_p90")]
            title = f"{curve['target']}, {curve['dtype']}, {curve['threads']} threads, context {curve['context']}"
        except KeyError as missing:
            raise UsageError(
                f"verify cost data lacks {missing}: expected target, dtype, threads, context and rows"
            ) from None
        tokens, median, low, high = columns
        axis.plot(tokens, median, color=colour, marker=marker, label=title)
        axis.fill_between(tokens, low, high, color=colour, alpha=0.2, linewidth=0)
        ratio = median[-1] / median[0]
        ends = f"{median[0]:.2f} ms for {tokens[0]}, {median[-1]:.2f} ms for {tokens[-1]}"
        lines.append(f"{title}: {ends} ({ratio:.2f} times).")
    axis.set(xlabel="tokens in the pass (tree nodes, root included)", ylabel="time of a target pass [ms]")
    axis.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=1)
    caption = "Cost of a verification against tree size: median of repeated passes, band from p10 to p90.\n"
    return Plot("verify_cost", figure, caption + "\n".join(lines))


@matplotlib.rc_context(STYLE)
def funnel(run: RunData, suffix: str = "") -> Plot:
    """Acceptance per depth and method: joint (path at least this deep), conditional (depth - 1 accepted)."""
    table = accepted_by_depth(run.measured[1])
    looks = _looks([run])
    figure, axes = _canvas(7.0, 3.0, 1, 2)
    verifications: dict[str, int] = {}
    for method in (method for method in run.methods if (table["method"] == method).any()):
        rows, label = table[table["method"] == method], run.labels[method]
        verifications[label] = rows["rounds"].iloc[0]
        known = rows[rows["reached"].shift(fill_value=verifications[label]) >= MIN_REACHED]
        axes[0].plot(rows["depth"], rows["joint"], **looks[label])
        axes[1].plot(known["depth"], known["conditional"], **looks[label])
    for axis, title in zip(axes, ("accepted at least this deep", "accepted, given the depth before"), strict=True):
        axis.set(title=title, xlabel="depth in the draft tree", ylabel="share of verifications", ylim=(0, 1.02))
        axis.xaxis.get_major_locator().set_params(integer=True)
    _legend(figure, {label: looks[label] for label in verifications})
    counts = "; ".join(f"{label} {count:,}" for label, count in verifications.items())
    caption = (
        f"Acceptance funnel of {name(run)}, counted before cutting at EOS and cap; conditional rates with "
        f"fewer than {MIN_REACHED} verifications behind them are left out. Verifications: {counts}. "
        f"{_context(run)}"
    )
    return Plot(f"funnel{suffix}", figure, caption)


@matplotlib.rc_context(STYLE)
def round_time(run: RunData, suffix: str = "") -> Plot:
    """Stacked bars: ms of a mean verification round in draft, verify and other; AR's round is one token."""
    rows = [row for row in run.summaries.values() if math.isfinite(row.round_ms)]
    figure, (axis,) = _canvas(6.4, 1.1 + 0.36 * len(rows), 1, 1)
    places = range(len(rows))
    left = [0.0] * len(rows)
    for part, colour in PARTS.items():
        shares = [row.overhead_share if part == "other" else getattr(row, f"{part}_share") for row in rows]
        widths = [row.round_ms * share for row, share in zip(rows, shares, strict=True)]
        axis.barh(places, widths, left=left, color=colour, label=part, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, row, end in zip(places, rows, left, strict=True):
        axis.text(end, place, f"  {number(row.round_ms / row.mat)} ms/token", va="center", fontsize=8)
    axis.set(
        xlabel="time of a mean verification round [ms]",
        yticks=places,
        xlim=(0, 1.25 * max(left, default=1.0)),
    )
    axis.set_yticklabels([run.labels[row.method] for row in rows])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=len(PARTS))
    shares = "; ".join(
        f"{run.labels[row.method]} {100 * row.draft_share:.1f}/{100 * row.verify_share:.1f}/"
        f"{100 * row.overhead_share:.1f} %"
        for row in rows
    )
    caption = (
        f"Where a round's time goes on {name(run)}: decode time over verifications, and time per emitted "
        f"token beside the bar. Draft/verify/other: {shares}. {_context(run)}"
    )
    return Plot(f"round_time{suffix}", figure, caption)


def _canvas(width: float, height: float, rows: int, columns: int) -> tuple[Figure, list]:
    """A figure of `width` x `height` inches with its axes in a list, on Agg, free of any global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    return figure, list(axes.flat)


def _looks(runs: Sequence[RunData]) -> dict[str, dict]:
    """Colour and marker by label, equal in all figures of a line-up; AR is no series, AR again is grey."""
    looks: dict[str, dict] = {}
    for run in runs:
        for method, label in run.labels.items():
            if method == BASELINE or label in looks:
                continue
            place = sum(look["color"] != GREY for look in looks.values())
            colour = GREY if method == run.baseline_again else COLOURS[place % len(COLOURS)]
            looks[label] = {"color": colour, "marker": MARKERS[len(looks) % len(MARKERS)]}
    return looks


def _legend(figure: Figure, looks: Mapping[str, dict]) -> None:
    """One legend under the figure, in line-up order."""
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    columns = max(1, min(len(handles), int(figure.get_figwidth() / 1.9)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _stems(runs: Sequence[RunData]) -> list[str]:
    """A file name part per run: nothing for a single run, else its folder's name, numbered where shared."""
    names = [run.path.resolve().name for run in runs]
    if len(runs) == 1:
        return [""]
    return [f"_{text}" if names.count(text) == 1 else f"_{text}_{place}" for place, text in enumerate(names)]


def _context(run: RunData) -> str:
    source = " Prompts are the project's own samples, not the published data set."
    samples = source if run.info["dataset"]["source"] == "samples" else ""
    return f"n = {run.summaries[BASELINE].prompts} prompts; {settings(run)}.{samples}"
