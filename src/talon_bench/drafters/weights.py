"""Reading the weight files of a draft head: safetensors or a pickled state dict, whole or sharded."""

from __future__ import annotations

import json
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from talon_bench.checksum import sha256_of
from talon_bench.errors import UsageError

ENTRIES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""The files that may name a head's weights, in order of preference."""


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of one head: `entry` is the first of `ENTRIES` found, `paths` what it names."""

    entry: str
    paths: tuple[Path, ...]
    listed: frozenset[str]
    """Tensor names that an index file promises; empty without an index."""
    warnings: tuple[str, ...]

    def read(self) -> dict[str, Tensor]:
        """All tensors on CPU under the names in the files."""
        tensors: dict[str, Tensor] = {}
        for path in self.paths:
            shard = _read_safetensors(path) if path.suffix == ".safetensors" else _read_bin(path)
            if repeated := sorted(shard.keys() & tensors.keys()):
                raise UsageError(f"{path.name} repeats {repeated[0]} of another shard; export the head again")
            tensors.update(shard)
        if lacking := sorted(self.listed - tensors.keys()):
            raise UsageError(
                f"{self.entry} lists {', '.join(lacking)}, absent from the shards; download the head again"
            )
        return tensors

    def sha256(self) -> str:
        """Hex digest over the files' bytes in name order; for one file, what `sha256sum` prints."""
        return sha256_of(*self.paths)


def find_weights(folder: Path) -> WeightFiles:
    """The weight files in `folder`; a warning says which entry was read when there are several."""
    present = [entry for entry in ENTRIES if (folder / entry).is_file()]
    if not present:
        raise UsageError(f"no weights in {folder}, expected one of {', '.join(ENTRIES)}; download the head again")
    entry, others = present[0], present[1:]
    warnings = (f"read {entry}, ignored {', '.join(others)} beside it",) if others else ()
    if not entry.endswith(".index.json"):
        return WeightFiles(entry, (folder / entry,), frozenset(), warnings)
    weight_map = read_json(folder / entry).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{entry} has no weight_map; download or export the head again")
    shards = sorted(set(map(str, weight_map.values())))
    for shard in shards:
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise UsageError(f"{entry} names {shard!r}, not a file of the head's folder; download the head again")
    return WeightFiles(entry, tuple(folder / shard for shard in shards), frozenset(weight_map), warnings)


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"no readable {file.name} in {file.parent}; give the folder of a downloaded head") from None
    except ValueError as error:
        raise UsageError(f"{file.name} is not JSON ({error}); download or export the head again") from None
    if not isinstance(value, dict):
        raise UsageError(f"{file.name} holds a {type(value).__name__}, expected an object; download it again")
    return value


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            return {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(file, error) from None


def _read_bin(file: Path) -> dict[str, Tensor]:
    """A pickled state dict, restricted to tensors; memory-mapped unless in torch's format before 1.6."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError:
        raise _unreadable(file, "objects other than tensors, or cut short") from None
    except Exception as error:  # broken pickle opcodes can raise anything
        raise _unreadable(file, error) from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"{file.name} is not a plain state dict of tensors; export the head's state dict alone")
    return state


def _unreadable(file: Path, reason: Exception | str) -> UsageError:
    line = (str(reason).splitlines() or [type(reason).__name__])[0].replace(str(file), file.name)
    return UsageError(f"{file.name} is truncated or not a weight file ({line}); download it again")
