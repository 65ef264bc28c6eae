"""Time of a verification against the number of its tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib

from talon_bench.errors import UsageError
from talon_bench.report.figures import style
from talon_bench.report.figures.plot import Plot


@matplotlib.rc_context(style.STYLE)
def verify_cost(sources: Sequence[str | os.PathLike[str] | Mapping]) -> Plot:
    """Median time of a target pass against its tokens, 10th to 90th percentile as a band, a curve a source.

    A source is a `verify_cost.json` or its content: {"target", "dtype", "threads", "context", "rows":
    [{"tokens", "ms_median", "ms_p10", "ms_p90"}]}. Raises UsageError where keys are missing.
    """
    figure, (axis,) = style.canvas(4.8, 2.8, 1, 1)
    lines = []
    for source, colour, marker in zip(sources, cycle(style.COLOURS), cycle(style.MARKERS), strict=False):
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
        axis.fill_between(tokens, low, high, color=colour, alpha=style.BAND, linewidth=0)
        ratio = median[-1] / median[0]
        ends = f"{median[0]:.2f} ms for {tokens[0]}, {median[-1]:.2f} ms for {tokens[-1]}"
        lines.append(f"{title}: {ends} ({ratio:.2f} times).")
    axis.set(xlabel="tokens in the pass (tree nodes, root included)", ylabel="time of a target pass [ms]")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    style.legend(figure, {}, axis.get_legend_handles_labels()[0])
    caption = "Cost of a verification against tree size: median of repeated passes, band from p10 to p90.\n"
    return Plot("verify_cost", figure, caption + "\n".join(lines))
