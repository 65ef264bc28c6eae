"""What stands under every table: definitions, provenance and warnings, generated from the records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from talon_bench.metrics import BASELINE, EAGER, paired_prompts
from talon_bench.report.load import RunData
from talon_bench.stats import Estimate, noise_floor

LOSSY_MARK = "†"
INTERVAL_MARK = "[low, high]"
DEFINITIONS = (
    "MAT: tokens emitted per verification, that is the accepted drafted tokens plus the target's own token "
    "(at most depth + 1), pooled over all verifications, after cutting at EOS and at the cap; the token from "
    "the prefill is not counted.",
    "η (eta): draft passes per verification; the catch-up pass over newly accepted tokens counts.",
    "gamma: mean time of a draft pass, the head's first one over the prompt included / mean time of a plain AR target "
    "pass in the same run; predicted speedup = MAT / (1 + gamma η).",
    "Speedup: AR decode time per emitted token / the method's, summed over the same prompts, batch 1, same "
    "process; prefill is excluded, a head's own pass over the prompt is charged to the method.",
    f"{INTERVAL_MARK}: 95 % paired bootstrap interval over prompts (percentile, 10,000 resamples). Bold: the "
    "fastest lossless method of a column, marked only where the interval of its ratio to every other "
    "lossless method lies above 1.",
)


EAGER_NOTE = (
    "Speedup vs AR eager: the same over AR launched kernel by kernel, as papers measure it, where that was measured."
)


def notes(runs: Sequence[RunData]) -> list[str]:
    """All lines under a table over `runs`: definitions, then provenance, then warnings."""
    eager = [EAGER_NOTE] if any(EAGER in run.speedups for run in runs) else []
    lines = [*DEFINITIONS, *eager, *_grouped((settings(run), _sized_name(run)) for run in runs)]
    if any(not method["lossless"] for run in runs for method in run.methods.values()):
        lines.append(f"{LOSSY_MARK}: not lossless, never marked best.")
    for warnings in (_samples, _noise, _busy, gaps, _differences):
        lines += warnings(runs)
    return lines


def settings(run: RunData) -> str:
    """Hardware, numerics, software and decoding of a run in one line."""
    machine, decode = run.info["provenance"], run.info["decode"]
    hardware = (
        machine.get("gpu") or f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('threads')} threads"
    )
    versions = ", ".join(f"{name} {machine.get(name)}" for name in ("talon_bench", "torch", "transformers", "python"))
    sampling = f"temperature {decode['temperature']:g}"
    if decode["temperature"] > 0:
        sampling += f", top-p {decode['top_p']}, top-k {decode['top_k']}, seed {decode['seed']}"
    commit = str(machine.get("git_commit") or "unknown")[:12]
    return (
        f"{hardware}; {machine.get('dtype')}; {versions}; commit {commit}; "
        f"max_new_tokens {decode['max_new_tokens']}; {sampling}"
    )


def name(run: RunData) -> str:
    """How a run is called in a note."""
    return f"{run.target} / {run.dataset}"


def run_noise(run: RunData) -> Estimate | None:
    """|log ratio| of the A/A pair; None where the line-up has no second AR."""
    if run.baseline_again is None:
        return None
    pairs = paired_prompts(run.measured[0], BASELINE, run.baseline_again)
    if pairs.empty:
        return None
    return noise_floor(
        pairs["reference_ms"],
        pairs["method_ms"],
        a_units=pairs["reference_tokens"],
        b_units=pairs["method_tokens"],
    )


def gaps(runs: Sequence[RunData]) -> list[str]:
    """A line for each method of a run with turns that failed or were skipped, with how many were measured."""
    lines = []
    for run in runs:
        for method, row in run.summaries.items():
            if row.failed or row.skipped:
                lines.append(
                    f"{name(run)}, {run.labels[method]}: {row.failed} turns failed, {row.skipped} skipped, "
                    f"{row.turns} measured."
                )
    return lines


def _sized_name(run: RunData) -> str:
    return f"{name(run)} (n = {run.summaries[BASELINE].prompts} prompts)"


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines 'names: text', one for each distinct text."""
    groups: dict[str, list[str]] = {}
    for text, owner in pairs:
        groups.setdefault(text, []).append(owner)
    return [f"{', '.join(owners)}: {text}." for text, owners in groups.items()]


def _samples(runs: Sequence[RunData]) -> list[str]:
    text = "Prompts are the project's own samples, not the published data set"
    own = dict.fromkeys(run.dataset for run in runs if run.info["dataset"]["source"] == "samples")
    return _grouped((text, dataset) for dataset in own)


def _noise(runs: Sequence[RunData]) -> list[str]:
    floors = []
    for run in runs:
        floor = run_noise(run)
        if floor is not None:
            value, low, high = (100 * math.expm1(end) for end in (floor.value, floor.low, floor.high))
            interval = "interval n/a" if math.isnan(low) else f"{low:.1f} to {high:.1f} %"
            floors.append(f"{name(run)} {value:.1f} % ({interval})")
    text = "A/A noise floor, how far AR measured again lies from AR, with its 95 % interval"
    return [f"{text}: {', '.join(floors)}."] if floors else []


def _busy(runs: Sequence[RunData]) -> list[str]:
    lines = []
    for run in runs:
        machine = run.info["provenance"]
        if machine.get("busy"):
            load = f"load {machine.get('load_before')} before, {machine.get('load_after')} after"
            lines.append(f"Busy machine during {name(run)} ({load}): its times are suspect.")
    return lines


def _differences(runs: Sequence[RunData]) -> list[str]:
    lines = []
    for run in runs:
        lossy = [row for row in run.summaries.values() if row.lossless is False]
        if lossy:
            counts = (
                f"{run.labels[row.method]} {row.compared_prompts - row.equal_prompts} of {row.compared_prompts}"
                for row in lossy
            )
            lines.append(
                f"{name(run)}: prompts that differ from AR: {', '.join(counts)}; largest logit margin at a "
                f"first divergence {max(row.worst_margin for row in lossy):.3g}."
            )
    return lines
