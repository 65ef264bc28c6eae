"""Reads what wandb wrote to disk: the records of a `.wandb` file and what of a W&B run's files would be uploaded."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_records(file: Path) -> Iterator[Any]:
    """Each whole `wandb_internal_pb2.Record` of a `.wandb` file: LevelDB's log format behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = 7, b""
    while position + 7 <= len(data):
        if BLOCK - position % BLOCK < 7:  # too short for a header: zeros up to the next block
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += 7
        chunk = data[position : position + length]
        position += length
        if kind == 0 or len(chunk) < length:
            return
        parts = chunk if kind in (FULL, FIRST) else parts + chunk
        if kind in (FULL, LAST):
            yield Record.FromString(parts)


@dataclass
class Shown:
    """One W&B run as its files on disk tell it."""

    folder: Path
    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, dict[str, Path]] = field(default_factory=dict)
    """By artifact type: path inside the artifact -> file on disk."""
    exit_code: int | None = None
    text: list[str] = field(default_factory=list)
    """Every record in text form, without the places of files on this machine, which no server is told."""

    def media(self, kind: str) -> dict[str, Path]:
        """Files of a kind, `table` or `images`, by the name they were logged under."""
        paths = {key: value for row in self.history for key, value in row.items() if key.endswith("/path")}
        return {
            key.removesuffix("/path"): self.folder / "files" / path
            for key, path in paths.items()
            if path.startswith(f"media/{kind}/")
        }


def read_offline(folder: Path) -> Shown:
    """The W&B run of an `offline-run-*` or `run-*` folder."""
    shown = Shown(folder)
    for record in read_records(next(folder.glob("run-*.wandb"))):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            shown.run = record.run
            shown.config.update(_items(record.run.config.update))
        elif kind == "history":
            shown.history.append(_items(record.history.item))
        elif kind == "summary":
            shown.summary.update(_items(record.summary.update))
        elif kind == "artifact":
            contents = record.artifact.manifest.contents
            places = {entry.path: Path(entry.local_path) for entry in contents}
            shown.artifacts.setdefault(record.artifact.type, {}).update(places)
            for entry in contents:
                entry.ClearField("local_path")
        elif kind == "exit":
            shown.exit_code = record.exit.exit_code
        shown.text.append(str(record))
    return shown


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
