"""Tables as rows of text for the page's template; numbers are printed as in every other report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from talon_bench.report.cells import BASELINE, SPEEDUPS
from talon_bench.report.render import cell_text, number, speedup_texts

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
    """A table of cells (`report.cells`): a group per target, and speedups, MAT and η for each data set."""
    spans, names = [("", 1)], [str(frame.index.names[1])]
    columns: list[list[Cell]] = [[Cell(_label(label), heading=True) for _, label in frame.index]]
    for dataset in frame.columns.unique(0):
        part = frame[dataset]
        speedups = speedup_texts(part)
        for baseline, texts in speedups.items():
            marks = part["best"] if baseline == BASELINE else [False] * len(texts)
            columns.append([Cell(text, best=bool(mark)) for text, mark in zip(texts, marks, strict=True)])
        columns += [[Cell(number(value)) for value in part[name]] for name in ("mat", "eta")]
        spans.append((dataset, len(speedups) + 2))
        names += [*(SPEEDUPS[baseline] for baseline in speedups), "MAT", "η"]
    rows = [list(cells) for cells in zip(*columns, strict=True)]
    targets = list(frame.index.get_level_values(0))
    groups = [
        (str(target), [row for own, row in zip(targets, rows, strict=True) if own == target])
        for target in dict.fromkeys(targets)
    ]
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


def _label(label: str | float) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def _headings(names: Iterable[str]) -> list[str]:
    """Column headings, which wrap between words but not inside the words for an interval."""
    return [name.replace(_INTERVAL, _INTERVAL.replace(" ", "\N{NO-BREAK SPACE}")) for name in names]
