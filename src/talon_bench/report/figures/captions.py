"""Words under a figure that come from the records: how many prompts, on what, and what to beware of."""

from __future__ import annotations

from collections.abc import Sequence

from talon_bench.metrics import BASELINE
from talon_bench.report.load import RunData
from talon_bench.report.notes import gaps, name, settings


def context(runs: Sequence[RunData]) -> str:
    """One sentence per distinct setting: the runs that share it with their n, then hardware, numerics and decoding.

    n counts the prompts that AR completed; a sentence per method with turns that failed or were skipped follows.
    """
    groups: dict[str, list[str]] = {}
    for run in runs:
        groups.setdefault(_facts(run), []).append(f"{name(run)} (n = {run.summaries[BASELINE].prompts} prompts)")
    return " ".join([*(f"{', '.join(owners)}: {facts}" for facts, owners in groups.items()), *gaps(runs)])


def _facts(run: RunData) -> str:
    text = f"{settings(run)}."
    if run.info["dataset"]["source"] == "samples":
        text += " Prompts are the project's own samples, not the published data set."
    if run.info["provenance"].get("busy"):
        text += " The machine was busy: times are suspect."
    return text
