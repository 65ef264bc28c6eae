"""Which files of a checkpoint's repository are needed, and where the hub's cache keeps them.

Needed is what lies at the top of the repository: configuration, tokenizer, chat template, and the weights in one form,
safetensors where there are any, else pickled. Never needed: folders (`original/`, `onnx/`), Mistral's second copy of the
weights (`consolidated*`), what a trainer leaves beside a model, and any other format (`*.gguf`, `*.h5`, `*.msgpack`, `*.pth`).
Names are relative paths with forward slashes, as the hub lists them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ENTRIES = {"*.safetensors": "model.safetensors", "*.bin": "pytorch_model.bin"}
"""The forms of weights in order of preference: pattern of the files, and the one that is read first, or its index."""
BESIDE = ("*.json", "*.model", "*.jinja", "*.txt")
UNWANTED = ("*/*", "consolidated*", "training_args.bin", "optimizer.bin", "scheduler.bin")

_INDEX = ".index.json"


def form_of(names: Iterable[str]) -> str:
    """The form in which weights are read from a repository of these files, as a pattern of `ENTRIES`."""
    known = set(names)
    forms = list(ENTRIES)
    return next((form for form in forms if known & {ENTRIES[form], ENTRIES[form] + _INDEX}), forms[-1])


def needed(names: Iterable[str]) -> list[str]:
    """Those of the files that loading needs, in the order given."""
    from huggingface_hub.utils import filter_repo_objects

    listed = list(names)
    return list(filter_repo_objects(listed, **_patterns(form_of(listed))))


def weight_files(folder: Path) -> list[Path]:
    """The weight files in a folder that loading reads, by name."""
    names = _names(folder)
    form = form_of(names)
    return [folder / name for name in sorted(needed(names)) if (folder / name).suffix == Path(form).suffix]


def is_complete(folder: Path) -> bool:
    """Whether config.json and all weight files are there, those that an index names included."""
    names = set(_names(folder))
    entry = ENTRIES[form_of(names)]
    if "config.json" not in names:
        return False
    if entry in names or entry + _INDEX not in names:
        return entry in names
    shards = set(json.loads((folder / (entry + _INDEX)).read_text(encoding="utf-8")).get("weight_map", {}).values())
    return bool(shards) and all((folder / shard).is_file() for shard in shards)


def snapshot(hub: str, revision: str | None, *, local_files_only: bool = False) -> Path:
    """The folder of the hub's cache with what is needed of a repository; fetched, unless `local_files_only`.

    Its name is the commit. Safetensors are asked for first, and pickled weights, of the same commit, only where there are none;
    so no list of files is asked for, and without a network the cache is read. Raises what the hub's client raises.
    """
    from huggingface_hub import snapshot_download

    preferred, other = ENTRIES
    options = {"local_files_only": local_files_only}
    folder = Path(snapshot_download(hub, revision=revision, **_patterns(preferred), **options))
    if form_of(_names(folder)) == other:
        folder = Path(snapshot_download(hub, revision=folder.name, **_patterns(other), **options))
    return folder


def _patterns(form: str) -> dict[str, Any]:
    """Arguments of the hub's client that choose the files."""
    return {"allow_patterns": [*BESIDE, form], "ignore_patterns": list(UNWANTED)}


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.is_file()]
