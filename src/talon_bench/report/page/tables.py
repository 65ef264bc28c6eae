"""Tables as rows of text for the page's template; numbers are printed as in every other report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from talon_bench.report.render import cell_text, number, speedup_text

_INTERVAL = "[95 % CI]"


@dataclass(frozen=True)
class Cell:
    """`text` as shown; `best` marks the fastest method of a column, `heading` a cell that names its row."""

    text: str
    best: bool = False
    heading: bool = False


@dataclass(frozen=True)
class Table:
    """`spans`: (heading, columns) above `names`; `groups`: (heading, rows)."""

    caption: str
    spans: list[tuple[str, int]]
    names: list[str]
    groups: list[tuple[str, list[list[Cell]]]]
    notes: list[str]
    folded: bool = False


def cells_table(frame: pd.DataFrame, caption: str, notes: Sequence[str]) -> Table:
    """A table of cells (`report.cells`): a group per target, and speedup, MAT and η for each data set."""
    datasets = frame.columns.unique(0)
    groups = []
    for target in frame.index.unique(0):
        rows = []
        for label, row in frame.loc[target].iterrows():
            cells = [Cell(f"{label:g}" if isinstance(label, float) else str(label), heading=True)]
            for dataset in datasets:
                own = row[dataset]
                speedup = speedup_text(own["speedup"], own["ci_low"], own["ci_high"])
                cells += [Cell(speedup, best=bool(own["best"])), Cell(number(own["mat"])), Cell(number(own["eta"]))]
            rows.append(cells)
        groups.append((str(target), rows))
    spans = [("", 1), *((dataset, 3) for dataset in datasets)]
    names = [str(frame.index.names[1]), *([f"speedup {_INTERVAL}", "MAT", "η"] * len(datasets))]
    return Table(caption, spans, _headings(names), groups, list(notes))


def plain_table(
    frame: pd.DataFrame, places: pd.DataFrame, caption: str, notes: Sequence[str], folded: bool = False
) -> Table:
    """Any other table as it is, its first column naming the row; equal `places` (target, data set) in a row are a group."""
    groups: list[tuple[str, list[list[Cell]]]] = []
    for owner, row in zip(places.itertuples(index=False), frame.itertuples(index=False), strict=True):
        cells = [Cell(cell_text(value), heading=place == 0) for place, value in enumerate(row)]
        name = " / ".join(owner)
        if not groups or groups[-1][0] != name:
            groups.append((name, []))
        groups[-1][1].append(cells)
    return Table(caption, [], _headings(frame.columns), groups, list(notes), folded)


def _headings(names: Iterable[str]) -> list[str]:
    """Column headings, which wrap between words but not inside the words for an interval."""
    return [name.replace(_INTERVAL, _INTERVAL.replace(" ", "\N{NO-BREAK SPACE}")) for name in names]
