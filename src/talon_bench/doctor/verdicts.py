"""Findings from the probe: what each head accepts, and whether each method writes what AR writes."""

from __future__ import annotations

import math

from talon_bench.doctor.finding import Finding, fault, ok, warning
from talon_bench.doctor.probe import CHAIN, Probe, chain_of
from talon_bench.job import NOISE_MARGIN
from talon_bench.lineup import BASELINE
from talon_bench.methods import MethodConfig

FIRST_POSITION = 0.3
"""Share of first guesses below which a setting is likely to be wrong: feature layers off by one leave about 0.1."""


def acceptance(kind: str, name: str, probe: Probe, min_mat: float) -> list[Finding]:
    """First-position acceptance and MAT of a head, against their floors."""
    first, mat = probe.first_position(chain_of(kind)), probe.mat(chain_of(kind))
    subject = f"head.{kind}"
    check = "compare its card with head settings above, and the chat template with the one it was trained on"
    findings = [
        ok(f"{subject} first position", f"{first:.1%} accepted")
        if first >= FIRST_POSITION
        else warning(f"{subject} first position", f"{first:.1%} accepted", f"at least {FIRST_POSITION:.0%}", check)
    ]
    if mat >= min_mat:
        findings.append(ok(f"{subject} MAT", f"{mat:.2f} in chains of {CHAIN}"))
    else:
        findings.append(
            fault(
                f"{subject} MAT",
                f"{mat:.2f} in chains of {CHAIN}",
                f"at least {min_mat:g}",
                f"numbers of {name} on this target are not fit to publish: use the head of this target",
            )
        )
    return findings


def losslessness(methods: list[MethodConfig], probe: Probe, dtype: str) -> list[Finding]:
    """One finding for each method but AR: equal ids, or how close the target's choice was where they part."""
    baseline = _failure(BASELINE, probe)
    if baseline:
        return [baseline]
    return [_lossless(method, probe, dtype) for method in methods if method.name != BASELINE]


def _lossless(method: MethodConfig, probe: Probe, dtype: str) -> Finding:
    subject = f"method {method.name}"
    if failed := _failure(method.name, probe):
        return failed
    rows = probe.turns[probe.turns["method"] == method.name]
    parted = rows[rows["equals_ar"] == False]  # noqa: E712
    mat = f"MAT {probe.mat(method.name):.2f}"
    equal = f"{len(rows) - len(parted)} of {len(rows)} answers equal AR's"
    if parted.empty or not method.lossless:
        return ok(subject, f"{equal}, {mat}")
    worst = parted.sort_values("margin").iloc[-1]
    bound = NOISE_MARGIN.get(dtype, 0.0)
    margin = float(worst["margin"])
    where = f"prompt {worst['prompt_id']}, position {int(worst['diverged_at'])}"
    if margin > bound:
        expected = f"equal, or a near-tie of at most {bound:g} in {dtype}"
        fix = "run target.dtype=float32; if they differ there too, do not publish, and report it"
        size = "one answer ends where the other goes on" if math.isinf(margin) else f"margin {margin:.3g}"
        return fault(subject, f"{equal}, {size} at {where}", expected, fix)
    if dtype == "float32":
        return warning(
            subject, f"{equal}, margin {margin:.3g} at {where}, {mat}", "all equal in float32", "see the margin"
        )
    return ok(subject, f"{equal}, the others part at a near-tie (margin at most {margin:.3g} of {bound:g}), {mat}")


def _failure(name: str, probe: Probe) -> Finding | None:
    """A finding where the method left answers out, None where all are there."""
    rows = probe.turns[probe.turns["method"] == name]
    broken = rows[rows["status"] != "ok"]
    if broken.empty:
        return None
    reason = " ".join(str(broken.iloc[0]["error"]).split())
    return fault(f"method {name}", f"{len(broken)} of {len(rows)} answers missing ({reason})", "all", "see the reason")
