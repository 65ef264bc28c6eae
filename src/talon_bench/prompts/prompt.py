"""What a prompt is, apart from any file or model: an id, the user's turns, what checks an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from talon_bench.errors import UsageError

Row = Mapping[str, Any]
"""One record of a source, as parsed from JSON or from the hub."""


@dataclass(frozen=True)
class Prompt:
    """One conversation to measure. Turn k + 1 is asked after the model's own answer to turn k.

    `reference` is never shown to a model; its keys are the loader's.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    reference: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class PromptSet:
    """The selected prompts of one data set, in the order in which they are measured.

    `origin` is a file name relative to `data.root` or to a package, or "hub id@commit"; never an absolute
    path. `sha256` is that of the file as stored; for the hub, of the rows as canonical JSON lines (sorted
    keys, UTF-8). `available` counts the prompts before the selection.
    """

    name: str
    prompts: tuple[Prompt, ...]
    source: Literal["local", "hub", "package", "samples"]
    origin: str
    sha256: str
    available: int


@dataclass(frozen=True)
class Loader:
    """How the rows of one data set become prompts, and where its published file is found.

    `from_row(row, index)` takes the 0-based index of the row in its file; UsageError names a broken field.
    """

    from_row: Callable[[Row, int], Prompt]
    published_sha256: frozenset[str]
    """SHA-256 of the published file: packed and unpacked where it is published packed."""
    obtain: str
    """Project and file to fetch, as a clause that ends an error message."""


def text_field(row: Row, name: str) -> str:
    """The row's text under `name`, unchanged; UsageError when it is missing, no text, or blank."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"field '{name}': expected text, found {describe(value)}")
    return value


def describe(value: object) -> str:
    """A short name for a wrong value, without its content."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return "text" if value.strip() else "an empty text"
    return type(value).__name__
