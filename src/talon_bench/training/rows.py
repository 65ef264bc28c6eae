"""Rows of training sources, one at a time: JSON lines, JSON arrays, the hub. Only one block of a file is ever in memory."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from talon_bench.checksum import sha256_of
from talon_bench.errors import UsageError
from talon_bench.prompts import hub as hub_datasets
from talon_bench.prompts.config import HubConfig
from talon_bench.prompts.prompt import Row, describe
from talon_bench.training import docstrings, sharegpt
from talon_bench.training.schema import SourceConfig

BLOCK = 1 << 20

_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class Origin:
    """The rows of one source, each with its place for messages.

    `name` is a file's name, a hub id with its commit, or a package with its version; never a folder of this machine.
    `sha256` is that of the file as stored; None where there is no one file.
    """

    name: str
    sha256: str | None
    rows: Iterator[tuple[str, Row]]


def read(name: str, source: SourceConfig, root: str | None) -> Origin:
    """The rows of source `name`; UsageError where they are not to be had."""
    if source.package:
        return _package(name, source)
    if source.file and (file := locate(source.file, root)):
        return Origin(file.name, sha256_of(file), read_file(file))
    if source.hub:
        return _hub(name, source.hub)
    where = "data.root" if root else "the current folder (data.root is not set)"
    raise UsageError(
        f"training source {name}: found no {source.file} in {where};"
        f" set data.root to the folder that holds it, or leave it out with training.sources.{name}.limit=0"
    )


def locate(file: str, root: str | None) -> Path | None:
    """The file, under `root` unless its path is absolute; None where there is none."""
    path = Path(root or ".").expanduser() / Path(file).expanduser()
    return path if path.is_file() else None


def read_file(file: Path) -> Iterator[tuple[str, Row]]:
    """Rows of a .jsonl or .json file, packed with gzip or not; UsageError for one that is broken."""
    name = file.name.removesuffix(".gz")
    if not name.endswith((".json", ".jsonl")):
        raise UsageError(f"{file.name}: expected a file ending in .jsonl, .json, .jsonl.gz or .json.gz")
    try:
        unpack = gzip.open if file.name.endswith(".gz") else open
        with unpack(file, "rb") as packed, io.TextIOWrapper(packed, encoding="utf-8-sig") as text:
            yield from _lines(file.name, text) if name.endswith(".jsonl") else items(file.name, text)
    except UnicodeDecodeError:
        raise UsageError(f"{file.name}: expected UTF-8, found other bytes; write the file anew") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"{file.name}: expected a whole gzip file, found a damaged one; fetch it again") from None


def items(name: str, text: TextIO, *, cut_off: bool = False) -> Iterator[tuple[str, Row]]:
    """Objects of a JSON array, read block by block. `cut_off`: the text may end in the middle of one, which is left out."""
    decoder = json.JSONDecoder()
    buffer = text.read(BLOCK)
    position = _BETWEEN.match(buffer).end()
    if not buffer.startswith("[", position):
        raise UsageError(f"{name}: expected a JSON array of objects, found other text at its start")
    position += 1
    number = 1
    while True:
        position = _BETWEEN.match(buffer, position).end()
        if buffer.startswith("]", position):
            return
        try:
            row, position = decoder.raw_decode(buffer, position)
        except json.JSONDecodeError as error:
            if block := text.read(BLOCK):
                buffer, position = buffer[position:] + block, 0
                continue
            if cut_off:
                return
            raise UsageError(f"{name} row {number}: expected JSON ({error.msg}); fetch the file again") from None
        yield f"row {number}", _object(name, f"row {number}", row)
        number += 1


def _lines(name: str, text: TextIO) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(text, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise UsageError(f"{name} line {number}: expected JSON ({error}); correct the line") from None
            yield f"line {number}", _object(name, f"line {number}", row)


def _object(name: str, place: str, row: object) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"{name} {place}: expected a JSON object, found {describe(row)}")
    return row


def _package(name: str, source: SourceConfig) -> Origin:
    if source.loader == "docstrings":
        version, rows = docstrings.functions(source.package)
        return Origin(f"{source.package} {version}", None, rows)
    if source.package != sharegpt.PACKAGE:
        raise UsageError(
            f"training source {name}: package is {source.package}; expected {sharegpt.PACKAGE} with loader sharegpt,"
            " or any installed package with loader docstrings"
        )
    return Origin(f"{sharegpt.PACKAGE} {sharegpt.VERSION}", sharegpt.SHA256, _sharegpt())


def _sharegpt() -> Iterator[tuple[str, Row]]:
    file = sharegpt.ensure_file()
    # The last character may be cut in half like the last conversation.
    with file.open(encoding="utf-8", errors="replace") as text:
        yield from items(file.name, text, cut_off=True)


def _hub(name: str, hub: HubConfig) -> Origin:
    """Rows straight from the library's memory-mapped table, which `prompts.hub.read` would copy whole."""
    import datasets

    try:
        commit = hub_datasets.resolve(hub)
        found = datasets.load_dataset(
            hub.path, name=hub.config, data_files=hub.files, revision=commit or hub.revision, split=hub.split
        )
    except Exception as error:
        # Network, hub and parser raise unrelated types; to the user all mean the same.
        raise UsageError(
            f"training source {name}: could not load {hub.path} from the hub ({type(error).__name__});"
            f" check the network, set data.root to local files, or leave it out with training.sources.{name}.limit=0"
        ) from error
    origin = f"{hub.path}@{commit}" if commit else hub.path
    return Origin(origin, None, ((f"row {number}", row) for number, row in enumerate(found, start=1)))
