"""Rows of the files that data sets are published in: JSON lines or a JSON array, packed with gzip or not."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Row


@dataclass(frozen=True)
class Rows:
    """The rows of one source with, for messages, the place of each ("line 3", "row 3"; counted from 1).

    `origin` and `sha256` are those of PromptSet; `left_out` counts rows that were dropped before they came here.
    """

    origin: str
    sha256: str
    rows: tuple[tuple[str, Row], ...]
    left_out: int = 0


def read_bytes(root: Path, name: str) -> bytes:
    """Content of a file under `root`; UsageError, without the folder, when it cannot be read."""
    try:
        return (root / name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: could not be read ({error.strerror}); check its permissions") from None


def parse(origin: str, content: bytes) -> Rows:
    """Rows of a .jsonl or .json file, packed with gzip or not. `sha256` is that of the bytes as stored."""
    sha256 = hashlib.sha256(content).hexdigest()
    name = origin.removesuffix(".gz")
    if not name.endswith((".json", ".jsonl")):
        raise UsageError(f"{origin}: expected a file ending in .jsonl, .json, .jsonl.gz or .json.gz")
    try:
        text = (gzip.decompress(content) if origin.endswith(".gz") else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error):
        raise UsageError(f"{origin}: expected a whole gzip file, found a damaged one; fetch it again") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{origin}: expected UTF-8, found another byte at {error.start}; fetch it again") from None
    rows = _json_lines(origin, text) if name.endswith(".jsonl") else _json_array(origin, text)
    return Rows(origin, sha256, rows)


def _json_lines(origin: str, text: str) -> tuple[tuple[str, Row], ...]:
    # str.splitlines would also cut at the Unicode line separators that JSON texts may hold.
    numbered = [(f"line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return tuple((place, _object(origin, place, _parse_json(origin, place, line))) for place, line in numbered)


def _json_array(origin: str, text: str) -> tuple[tuple[str, Row], ...]:
    rows = _parse_json(origin, "text", text)
    if not isinstance(rows, list):
        raise UsageError(f"{origin}: expected a JSON array of objects, found {type(rows).__name__}")
    numbered = [(f"row {number}", row) for number, row in enumerate(rows, start=1)]
    return tuple((place, _object(origin, place, row)) for place, row in numbered)


def _parse_json(origin: str, place: str, text: str) -> object:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{origin} {place}: expected JSON ({error}); fetch the file again") from None


def _object(origin: str, place: str, row: object) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"{origin} {place}: expected a JSON object, found {type(row).__name__}")
    return row
