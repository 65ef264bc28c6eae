"""Which rows are held out, and the order of the rest: any first part of the prompts has all sources in their shares."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench import atomic
from talon_bench.training.schema import TrainConfig, TrainingConfig

HELD_OUT_PART = 10
"""A family loses at most one row in so many to the held-out set, however small it is."""

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.large_string())])
KEPT = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("group", pa.string()),
        ("messages", pa.large_list(_MESSAGE)),
    ]
)
"""Rows of one source in seeded order: `text` tells repeated ones, `group` what stays together."""


def join(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """Join the sources' files into prompts.parquet and corpus.parquet, held-out rows first; facts by source.

    A row whose text came before, in another source, is dropped; so is every piece of a conversation of which another piece
    repeats a test prompt or is held out.
    """
    training = config.training
    names = [*training.used("prompts"), *training.used("corpus")]
    counts = {name: read_counts(folder / f"source-{name}.parquet") for name in names}
    tested = {(_family(training, name), group) for name in names for group in counts[name].pop("overlapping_groups")}
    index = _index(training, folder, names, tested, counts)
    held_out = _held_out(training, index)
    tables = {use: _order(training, use, index, held_out, counts) for use in ("prompts", "corpus")}
    for use, picked in tables.items():
        _write(folder / f"{use}.parquet", _take(folder, training, picked), training.part)
    return {name: _facts(training, name, counts[name], tables) for name in names}


def read_counts(file: Path) -> dict[str, Any]:
    """What was counted while a source's rows were read."""
    return json.loads(pq.read_schema(file).metadata[b"counts"])


def _family(training: TrainingConfig, name: str) -> str:
    return training.sources[name].family or name


def _index(
    training: TrainingConfig, folder: Path, names: list[str], tested: set, counts: dict[str, Any]
) -> dict[str, list[tuple[int, str]]]:
    """(row, group) of every row that may be used, by source; the texts themselves stay on disk."""
    seen: dict[str, set[str]] = defaultdict(set)
    index: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        table = pq.read_table(folder / f"source-{name}.parquet", columns=["text", "group"])
        before, family, dropped = seen[training.sources[name].use], _family(training, name), Counter()
        index[name] = []
        for number, (text, group) in enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True)):
            if text in before:
                dropped["in another source"] += 1
            elif (family, group) in tested:
                dropped["part of a conversation that overlaps with a test prompt"] += 1
            else:
                index[name].append((number, group))
            before.add(text)
        counts[name]["dropped"].update(dropped)
    return index


def _held_out(training: TrainingConfig, index: dict[str, list[tuple[int, str]]]) -> set[str]:
    """Groups held out: `held_out` rows of every family, of its prompts where it has any."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in index:
        families[_family(training, name)].append(name)
    groups: set[str] = set()
    for family, names in sorted(families.items()):
        asked = [name for name in names if training.sources[name].use == "prompts"] or names
        sizes = Counter(group for name in asked for _, group in index[name])
        wanted = min(training.held_out, sum(sizes.values()) // HELD_OUT_PART)
        for group in sorted(sizes, key=lambda group: _order_key(training.seed, family, group)):
            if wanted <= 0:
                break
            groups.add(group)
            wanted -= sizes[group]
    return groups


def _order(
    training: TrainingConfig, use: str, index: dict[str, list], held_out: set[str], counts: dict[str, Any]
) -> list[tuple[str, int, bool]]:
    """(source, row, held out) in the order of the table of a use, held-out rows first."""
    first: list[tuple[float, str, int]] = []
    rest: list[tuple[float, str, int]] = []
    for name in training.used(use):
        family = _family(training, name)
        by_prompts = any(_family(training, other) == family for other in training.used("prompts"))
        weight = len(index[name]) * training.sources[name].weight
        for place, (number, group) in enumerate(index[name]):
            entry = ((place + 0.5) / weight, name, number)
            if group not in held_out:
                rest.append(entry)
            elif use == "prompts" or not by_prompts:
                first.append(entry)
            else:
                dropped = counts[name]["dropped"]
                dropped["held out among the prompts"] = dropped.get("held out among the prompts", 0) + 1
    rest = sorted(rest)[: training.limit if use == "prompts" else None]
    return [(name, number, True) for _, name, number in sorted(first)] + [
        (name, number, False) for _, name, number in rest
    ]


def _take(folder: Path, training: TrainingConfig, picked: list[tuple[str, int, bool]]) -> pa.Table:
    """The rows of the sources' files in the order of `picked`."""
    names = list(dict.fromkeys(name for name, _, _ in picked))
    tables = [pq.read_table(folder / f"source-{name}.parquet").replace_schema_metadata() for name in names]
    starts, start = {}, 0
    for name, table in zip(names, tables, strict=True):
        starts[name] = start
        start += table.num_rows
    rows = pa.array([starts[name] + number for name, number, _ in picked], pa.int64())
    joined = pa.concat_tables(tables) if tables else KEPT.empty_table()
    return pa.table(
        {
            "id": joined["id"].take(rows),
            "source": pa.array([name for name, _, _ in picked], pa.string()),
            "family": pa.array([_family(training, name) for name, _, _ in picked], pa.string()),
            "held_out": pa.array([held for _, _, held in picked], pa.bool_()),
            "messages": joined["messages"].take(rows),
        }
    )


def _write(file: Path, table: pa.Table, part: int) -> None:
    """Row groups are the parts that the next stages work on."""
    atomic.replace(file, lambda to: pq.write_table(table, to, compression="zstd", row_group_size=part))


def _facts(training: TrainingConfig, name: str, counts: dict[str, Any], tables: dict[str, list]) -> dict[str, Any]:
    source = training.sources[name]
    picked = [held for found, _, held in tables[source.use] if found == name]
    return {
        "use": source.use,
        "family": _family(training, name),
        "licence": source.licence,
        **counts,
        "held_out": sum(picked),
        "trained": len(picked) - sum(picked),
    }


def _order_key(seed: int, family: str, group: str) -> str:
    return hashlib.sha256(f"held out {seed} {family} {group}".encode()).hexdigest()
