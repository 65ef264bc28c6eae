"""What one setting of a method does: its values against data sets."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from talon_bench.report.cells import Entry, cell_table
from talon_bench.report.groups import row_groups
from talon_bench.report.load import RunData
from talon_bench.report.sweeps import variants

_NO_SETTING = ("policy", "label", "lossless", "head")


def ablation_table(runs: Sequence[RunData], field: str) -> pd.DataFrame:
    """Index (target, `field`) by rising value of the swept setting, columns (data set, one of `cells.CELLS`).

    All `runs` sweep `field` (`sweeps.families`). `best` compares the variants of one run with each other, on
    the same prompts. A target stands once for every method swept on it and for every combination of run
    settings, as in the main table.
    """
    bases = [tuple(dict.fromkeys(variant.base for variant in variants(run))) for run in runs]
    several = len(set().union(*bases)) > 1
    entries = []
    for group, run in zip(row_groups(runs, bases), runs, strict=True):
        for variant in variants(run):
            heading = f"{group}, {variant.base}" if several else group
            entries.append(Entry(heading, variant.value, run, variant.method))
    groups = list(dict.fromkeys(entry.group for entry in entries))
    entries.sort(key=lambda entry: (groups.index(entry.group), entry.label))
    return cell_table(entries, ["target", field])


def ablation_notes(runs: Sequence[RunData], field: str) -> list[str]:
    """What the variants of the swept `field` share: the method, its head and its other settings."""
    lines = []
    for run in runs:
        for variant in variants(run):
            own = run.methods[variant.method]
            fixed = [f"{key} {value}" for key, value in own.items() if key not in (field, *_NO_SETTING)]
            head = run.info["heads"].get(own["head"]) or {}
            shared = ", ".join([*fixed, f"head {head.get('name')}"])
            lines.append(f"Rows: {variant.base} by {field}, with {shared}.")
    return list(dict.fromkeys(lines))
