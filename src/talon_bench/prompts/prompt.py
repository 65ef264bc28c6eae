"""What a prompt is, apart from any file or model: an id, the user's turns, what checks an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from talon_bench.errors import UsageError

Row = Mapping[str, Any]
"""One record of a source, as parsed from JSON or from the hub."""

Source = Literal["local", "hub", "package", "samples", "prepared"]


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
    keys, UTF-8). `companion_sha256` is that of the loader's companion file. `available` counts the prompts
    before the selection, `left_out` the rows that `variant` does not ask (its worked examples, say).
    """

    name: str
    prompts: tuple[Prompt, ...]
    variant: str
    source: Source
    origin: str
    sha256: str
    companion_sha256: str | None
    available: int
    left_out: int


FromRow = Callable[[Row, int], "Prompt | None"]
"""A row and its 0-based index in the file give a prompt, or None for a row that is not asked; UsageError names a broken field."""


@dataclass(frozen=True)
class Variant:
    """One form of asking a data set's rows.

    `bind` is called once with all rows of the source, so that a form may show some of them as worked examples. Where the
    form reads another file than the data set, `files` are its candidates under `data.root`, with their own published sums.
    """

    bind: Callable[[Sequence[Row]], FromRow]
    files: tuple[str, ...] = ()
    published_sha256: frozenset[str] = frozenset()
    obtain: str = ""


def each(from_row: FromRow) -> Callable[[Sequence[Row]], FromRow]:
    """The `bind` of a form that reads every row for itself."""
    return lambda rows: from_row


@dataclass(frozen=True)
class Companion:
    """A second file of a data set, a JSON array: a row gets its object with the same `key`, under `as_field`."""

    files: tuple[str, ...]
    sample: str
    key: str
    as_field: str
    published_sha256: frozenset[str]
    obtain: str


@dataclass(frozen=True)
class Loader:
    """How the rows of one data set become prompts, and where its published file is found.

    The first of `variants` is the default. `splits` are parts of the file, by a test on its rows; the first is the default.
    `skip_repeats` leaves out, and counts, rows whose id came before; elsewhere they are an error.
    """

    variants: Mapping[str, Variant]
    published_sha256: frozenset[str]
    """SHA-256 of the published file: packed and unpacked where it is published packed."""
    obtain: str
    """Project and file to fetch, as a clause that ends an error message."""
    licence: str
    splits: Mapping[str, Callable[[Row], bool]] = field(default_factory=dict)
    companion: Companion | None = None
    skip_repeats: bool = False
    summed_files: tuple[str, ...] = ()
    """The only files that `published_sha256` speaks of; () where it does of all files of the set."""


def text_field(row: Row, name: str) -> str:
    """The row's text under `name`, unchanged; UsageError when it is missing, no text, or blank."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"field '{name}': expected text, found {describe(value)}")
    return value


def optional_text(row: Row, name: str) -> str:
    """The row's text under `name`, or "" where there is none; UsageError for another type."""
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"field '{name}': expected text or nothing, found {describe(value)}")
    return value or ""


def texts_field(row: Row, name: str) -> tuple[str, ...]:
    """The row's list of texts under `name`, unchanged; UsageError for anything else."""
    value = row.get(name)
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"field '{name}': expected a list of texts, found {describe(value)}")
    if other := [item for item in value if not isinstance(item, str)]:
        raise UsageError(f"field '{name}': expected texts in the list, found {describe(other[0])}")
    return tuple(value)


def number_field(row: Row, name: str) -> int:
    """The row's whole number under `name`; UsageError for anything else."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"field '{name}': expected a whole number, found {describe(value)}")
    return value


def describe(value: object) -> str:
    """A short name for a wrong value, without its content."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return "text" if value.strip() else "an empty text"
    return type(value).__name__
