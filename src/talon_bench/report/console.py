"""The end of a run on the terminal: a table for people, a dictionary for the last line, for scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from talon_bench.metrics import MethodSummary
from talon_bench.report.render import number, speedup_text
from talon_bench.stats import Estimate


def summary_table(
    summaries: Sequence[MethodSummary],
    labels: Mapping[str, str] | None = None,
    title: str | None = None,
    over_eager: Mapping[str, Estimate] | None = None,
) -> Table:
    """One row per method, at most 100 columns wide for labels of up to 28 characters; longer ones wrap.

    `over_eager`: speedup over AR launched kernel by kernel, by method, for a second column of speedups. "equal" counts the
    prompts whose ids are AR's, "other" is the share of decode time outside draft and verification.
    """
    # A second interval leaves no room for lines between the columns.
    tight = {"box": SIMPLE_HEAD, "collapse_padding": True, "pad_edge": False} if over_eager else {}
    table = Table(title=title, title_justify="left", **tight)
    table.add_column("method", overflow="fold", max_width=28)
    second = ("speedup vs\nAR eager [95 % CI]",) if over_eager else ()
    for heading in ("speedup [95 % CI]", *second, "MAT", "η", "tok/s", "predicted", "other", "equal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in summaries:
        ratios = [Estimate(row.speedup, *row.speedup_ci95), *([over_eager[row.method]] if over_eager else [])]
        table.add_row(
            (labels or {}).get(row.method, row.method),
            *(speedup_text(ratio.value, ratio.low, ratio.high) for ratio in ratios),
            number(row.mat),
            number(row.eta),
            number(row.tokens_per_second, 1),
            number(row.predicted_speedup),
            "n/a" if math.isnan(row.overhead_share) else f"{100 * row.overhead_share:.1f} %",
            f"{row.equal_prompts}/{row.compared_prompts}" if row.compared_prompts else "n/a",
        )
    lost = [
        f"{row.method}: {row.failed} failed, {row.skipped} skipped" for row in summaries if row.failed or row.skipped
    ]
    if lost:
        table.caption = "turns not measured: " + "; ".join(lost)
    return table


def final_json(
    summaries: Sequence[MethodSummary], *, run_dir: str, target: str, heads: Sequence[str], dataset: str
) -> dict:
    """The run as one JSON object of schema 1; what is undefined is null, so that the line is valid JSON."""
    return {
        "schema": 1,
        "run_dir": run_dir,
        "target": target,
        "head": "+".join(heads),
        "dataset": dataset,
        "methods": {
            row.method: {
                "mat": _finite(row.mat),
                "eta": _finite(row.eta),
                "tokens_per_second": _finite(row.tokens_per_second),
                "speedup": _finite(row.speedup),
                "speedup_ci95": [_finite(end) for end in row.speedup_ci95],
                "turns": row.turns,
                "lossless": row.lossless,
                "overhead_share": _finite(row.overhead_share),
            }
            for row in summaries
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
