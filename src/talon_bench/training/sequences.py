"""Sequences of tokens with what is trained of them, in files of a bounded number of rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench.records import write_table

SEQUENCES = pa.schema(
    [
        ("id", pa.string()),
        ("family", pa.string()),
        ("held_out", pa.bool_()),
        ("length", pa.int32()),
        ("ids", pa.list_(pa.int32())),
        ("trained", pa.list_(pa.bool_())),
    ]
)


@dataclass(frozen=True)
class TokenSequence:
    """One conversation as the target reads it: `ids`, and for each token whether heads are trained to draft it."""

    id: str
    family: str
    held_out: bool
    ids: list[int]
    trained: list[bool]


def part_file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def write_part(file: Path, sequences: list[TokenSequence]) -> None:
    """Write a part, whole or not at all; one without rows marks that there was nothing to keep."""
    records = [{**vars(sequence), "length": len(sequence.ids)} for sequence in sequences]
    write_table(pa.Table.from_pylist(records, SEQUENCES), file)


class SequenceFiles:
    """All parts of the folders, in order. Only one part is in memory at a time."""

    def __init__(self, folders: list[Path]) -> None:
        self._files = [file for folder in folders for file in sorted(folder.glob("part-*.parquet"))]
        columns = [pq.read_table(file, columns=["length", "held_out"]) for file in self._files]
        self._starts = np.cumsum([0, *(table.num_rows for table in columns)]).tolist()
        empty = SEQUENCES.empty_table().select(["length", "held_out"])
        joined = pa.concat_tables([empty, *columns])
        self.lengths: np.ndarray = joined["length"].to_numpy()
        self.held_out: np.ndarray = joined["held_out"].to_numpy()
        self._part: tuple[int, pa.Table | None] = (-1, None)

    def read(self, numbers: np.ndarray) -> Iterator[TokenSequence]:
        """The sequences of these numbers (ascending)."""
        for number in numbers.tolist():
            part = bisect_right(self._starts, number) - 1
            if part != self._part[0]:
                self._part = (part, pq.read_table(self._files[part], schema=SEQUENCES))
            row = self._part[1].slice(number - self._starts[part], 1).drop_columns("length").to_pylist()[0]
            yield TokenSequence(**row)
