"""Runs that compare variants of one method: which setting they vary, and the values it takes.

A sweep names its variants METHOD[FIELD=VALUE] (`talon_bench.methods.sweep_variants`); the value itself is read from the
method's settings in run.json.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from talon_bench.report.load import RunData

_VARIANT = re.compile(r"(?P<base>.+)\[(?P<field>\w+)=.*\]")


@dataclass(frozen=True)
class Variant:
    """One variant in a sweep: `method` is its name in the records, `base` the method it varies."""

    method: str
    base: str
    field: str
    value: float


def variants(run: RunData) -> list[Variant]:
    """The variants of a sweep in `run`, sorted by base and value; none for a plain line-up."""
    found = []
    for method, settings in run.methods.items():
        match = _VARIANT.fullmatch(method)
        value = settings.get(match["field"]) if match else None
        if isinstance(value, int | float):
            found.append(Variant(method, match["base"], match["field"], value))
    return sorted(found, key=lambda variant: (variant.base, variant.value))


def swept_field(run: RunData) -> str | None:
    """The setting that `run` sweeps, None for a plain line-up."""
    return next((variant.field for variant in variants(run)), None)


def families(runs: Sequence[RunData]) -> dict[str | None, list[RunData]]:
    """Runs by what they sweep: plain line-ups under None, first, if there are any; then a list per swept setting."""
    grouped: dict[str | None, list[RunData]] = {}
    for run in sorted(runs, key=lambda run: swept_field(run) or ""):
        grouped.setdefault(swept_field(run), []).append(run)
    return grouped


def by_base(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs by the method that they vary, in the order of `runs`; plain line-ups under an empty name."""
    grouped: dict[str, list[RunData]] = {}
    for run in runs:
        grouped.setdefault("-".join(dict.fromkeys(variant.base for variant in variants(run))), []).append(run)
    return grouped
