"""Where the time of a verification round goes."""

from __future__ import annotations

import math

import matplotlib

from talon_bench.report.by_prompt import pooled, prompt_sums
from talon_bench.report.figures import style
from talon_bench.report.figures.captions import context
from talon_bench.report.figures.plot import Plot
from talon_bench.report.load import RunData
from talon_bench.report.notes import name
from talon_bench.report.render import number

# No method has these colours, and they differ in grey print too.
PARTS = {"draft": "#5e3c99", "verify": "#b2abd2", "other": "#d8d8d8"}


@matplotlib.rc_context(style.STYLE)
def round_time(run: RunData, suffix: str = "") -> Plot:
    """Stacked bars: ms of a mean verification round in draft, verify and other; AR's round is one token."""
    rows = [row for row in run.summaries.values() if math.isfinite(row.round_ms)]
    sums = prompt_sums(*run.measured)
    figure, (axis,) = style.canvas(6.4, 0.7 + 0.32 * len(rows), 1, 1)
    places = range(len(rows))
    left = [0.0] * len(rows)
    for part, colour in PARTS.items():
        shares = [row.overhead_share if part == "other" else getattr(row, f"{part}_share") for row in rows]
        widths = [row.round_ms * share for row, share in zip(rows, shares, strict=True)]
        axis.barh(places, widths, left=left, color=colour, edgecolor="white", linewidth=0.5, label=part, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, row, end in zip(places, rows, left, strict=True):
        total = pooled(sums.loc[row.method], "decode_ms")
        axis.hlines(place, total.low, total.high, color="black", linewidth=1.0)
        edge = end if math.isnan(total.high) else max(end, total.high)
        axis.text(edge, place, f"  {number(row.round_ms / row.mat)} ms/token", va="center", fontsize=style.SMALL)
        left[place] = edge
    axis.set(
        xlabel="time of a mean verification round [ms]",
        yticks=places,
        xlim=(0, 1.28 * max(left, default=1.0)),
    )
    axis.set_yticklabels([run.labels[row.method] for row in rows], fontsize=style.SMALL)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    style.legend(figure, {}, axis.get_legend_handles_labels()[0])
    shares = "; ".join(
        f"{run.labels[row.method]} {100 * row.draft_share:.1f}/{100 * row.verify_share:.1f}/"
        f"{100 * row.overhead_share:.1f} %"
        for row in rows
    )
    caption = (
        f"Where a round's time goes on {name(run)}: decode time over verifications with its 95 % interval over "
        f"prompts, and time per emitted token beside the bar. Draft/verify/other: {shares}. {context([run])}"
    )
    return Plot(f"round_time{suffix}", figure, caption)
