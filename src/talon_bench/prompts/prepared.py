"""Prepared data sets: one JSON-lines file per form of a set, all of one schema, and a manifest that vouches for them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from talon_bench import atomic
from talon_bench.errors import UsageError
from talon_bench.prompts.files import Rows, parse, read_bytes
from talon_bench.prompts.prompt import Prompt, PromptSet, Row, describe, text_field, texts_field

MANIFEST = "manifest.json"
SCHEMA = 1


def file_name(name: str, variant: str, split: str | None) -> str:
    """The file of one form: `gsm8k.bare.jsonl`, `mbpp.test.zero_shot.jsonl`."""
    return ".".join(part for part in (name, split, variant, "jsonl") if part)


def write(folder: Path, split: str | None, found: PromptSet, facts: dict[str, Any]) -> str:
    """Write a whole set's prompts and its manifest entry, each atomically; returns the file's name.

    `facts` join the entry as they are.
    """
    name = file_name(found.name, found.variant, split)
    lines = (json.dumps({**asdict(prompt), "variant": found.variant}) for prompt in found.prompts)
    content = "".join(f"{line}\n" for line in lines).encode()
    entry = {
        "dataset": found.name,
        "variant": found.variant,
        "split": split,
        "rows": len(found.prompts),
        "turns": sum(len(prompt.turns) for prompt in found.prompts),
        "left_out": found.left_out,
        "sha256": hashlib.sha256(content).hexdigest(),
        "source": found.source,
        "origin": found.origin,
        "source_sha256": found.sha256,
        "companion_sha256": found.companion_sha256,
        **facts,
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = manifest(folder) if (folder / MANIFEST).is_file() else {}
    files[name] = entry
    atomic.replace(folder / name, lambda part: part.write_bytes(content))
    text = json.dumps({"schema": SCHEMA, "files": dict(sorted(files.items()))}, indent=2, ensure_ascii=False)
    atomic.replace(folder / MANIFEST, lambda part: part.write_text(f"{text}\n", encoding="utf-8"))
    return name


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries of the folder's manifest by file name; UsageError when there is none or it is not one."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"data.root: found no {MANIFEST}; make one with `{_fetch()}`")
    try:
        content = json.loads(read_bytes(folder, MANIFEST))
        schema, files = content["schema"], content["files"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{MANIFEST}: expected a manifest of data_prep, found another file; remove it and fetch again"
        ) from None
    if schema != SCHEMA or not isinstance(files, dict) or not all(_vouches(entry) for entry in files.values()):
        raise UsageError(
            f"{MANIFEST}: expected schema {SCHEMA} and an entry per file, found others; remove it and fetch again"
        )
    return files


def read(folder: Path, name: str, variant: str, split: str | None) -> Rows:
    """Rows of a prepared file; UsageError when it is absent or is not the file that its manifest vouches for."""
    file = file_name(name, variant, split)
    entry = manifest(folder).get(file)
    if entry is None or not (folder / file).is_file():
        raise UsageError(f"{name}: found no {file} in data.root; make it with `{_fetch(name)}`")
    content = read_bytes(folder, file)
    if (found := hashlib.sha256(content).hexdigest()) != entry["sha256"]:
        raise UsageError(
            f"{file}: sha256 {found[:12]}... found, {entry['sha256'][:12]}... expected by {MANIFEST};"
            f" fetch it again with `{_fetch(name)}`"
        )
    rows = parse(file, content)
    return Rows(file, rows.sha256, rows.rows, left_out=entry["left_out"])


def from_row(row: Row, index: int) -> Prompt:
    """A line of a prepared file: id, category, turns, reference."""
    reference = row.get("reference")
    if not isinstance(reference, dict) or not all(isinstance(value, str) for value in reference.values()):
        raise UsageError(f"field 'reference': expected an object of texts, found {describe(reference)}")
    return Prompt(text_field(row, "id"), text_field(row, "category"), texts_field(row, "turns"), reference)


def _vouches(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and isinstance(entry.get("left_out"), int)


def _fetch(*names: str) -> str:
    """The command that writes prepared files to FOLDER, for a message."""
    return " ".join(("python -m data_prep fetch", *names, "--root ORIGINALS --out FOLDER"))
