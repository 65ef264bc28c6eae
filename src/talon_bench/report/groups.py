"""What rows are called: which runs share them, what tells the others apart, which methods carry a mark."""

from __future__ import annotations

from collections.abc import Sequence

from talon_bench.report.load import RunData
from talon_bench.report.notes import LOSSY_MARK


def row_groups(runs: Sequence[RunData]) -> list[str]:
    """The row heading of each run: its target, and whatever tells it from other runs of the same target."""
    parts = [_settings(run) for run in runs]
    heads = []
    for run, own in zip(runs, parts, strict=True):
        peers = [other for peer, other in zip(runs, parts, strict=True) if peer.target == run.target]
        differing = [text for key, text in own.items() if len({peer[key] for peer in peers}) > 1]
        heads.append(f"{run.target} ({', '.join(differing)})" if differing else run.target)
    places = [(head, run.dataset) for head, run in zip(heads, runs, strict=True)]
    return [
        f"{head} [{run.path.name}]" if places.count((head, run.dataset)) > 1 else head
        for head, run in zip(heads, runs, strict=True)
    ]


def marked(run: RunData, method: str) -> str:
    """The method's label, with a mark if it is not lossless."""
    return run.labels[method] + ("" if run.methods[method]["lossless"] else f" {LOSSY_MARK}")


def _settings(run: RunData) -> dict[str, str]:
    """What may tell two runs of one target apart, as text."""
    machine, decode = run.info["provenance"], run.info["decode"]
    return {
        "temperature": f"T = {decode['temperature']:g}",
        "dtype": str(machine.get("dtype")),
        "cap": f"max {decode['max_new_tokens']} tokens",
        "hardware": str(machine.get("gpu") or machine.get("cpu")),
        "threads": f"{machine.get('threads')} threads",
    }
