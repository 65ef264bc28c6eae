"""Time of a verification against the number of its tokens."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

from talon_bench.errors import UsageError
from talon_bench.report.figures import style
from talon_bench.report.figures.plot import Plot

_COLUMNS = ("tokens", "ms_median", "ms_p10", "ms_p90")


@matplotlib.rc_context(style.STYLE)
def verify_cost(sources: Sequence[str | os.PathLike[str] | Mapping]) -> Plot:
    """Median time of a target pass against its tokens, 10th to 90th percentile as a band, a curve a source.

    A source is a `verify_cost.json` or its content: {"target", "dtype", "threads", "context", "rows":
    [{"tokens", "ms_median", "ms_p10", "ms_p90"}]}. Raises UsageError where it is anything else.
    """
    figure, (axis,) = style.canvas(4.8, 2.8, 1, 1)
    lines = []
    for source, colour, marker in zip(sources, cycle(style.COLOURS), cycle(style.MARKERS), strict=False):
        title, (tokens, median, low, high) = _curve(source)
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


def _curve(source: str | os.PathLike[str] | Mapping) -> tuple[str, list[list[float]]]:
    """(title, `_COLUMNS`) of a source; UsageError names the file and what is wrong with it."""
    named = "verify cost data" if isinstance(source, Mapping) else str(source)
    expected = "expected target, dtype, threads, context and rows as analysis.verify_cost writes them, measure again"
    try:
        curve: Any = source if isinstance(source, Mapping) else json.loads(Path(source).read_text(encoding="utf-8"))
        columns = [[row[key] for row in curve["rows"]] for key in _COLUMNS]
        title = f"{curve['target']}, {curve['dtype']}, {curve['threads']} threads, context {curve['context']}"
    except KeyError as missing:
        raise UsageError(f"{named} lacks {missing}: {expected}") from None
    except ValueError as error:
        raise UsageError(f"{named} is no JSON ({error}): {expected}") from None
    except TypeError:
        raise UsageError(f"{named} holds other types: {expected}") from None
    if not columns[0]:
        raise UsageError(f"{named} has no rows: {expected}")
    for value in (value for column in columns for value in column):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(f"{named} has {value!r} for a number above 0: {expected}")
    return title, columns
