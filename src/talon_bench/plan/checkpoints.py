"""Where the checkpoints of a job are: in a folder, in the hub's cache, or still to be fetched; and how large they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from talon_bench.embedded import FOLDER
from talon_bench.errors import UsageError
from talon_bench.paths import cache_dir, shipped
from talon_bench.repository import is_complete, needed, snapshot, weight_files
from talon_bench.schema import HeadConfig, TargetConfig

HUB_DTYPE_BYTES = 2
"""Checkpoints on the hub are taken to be stored in 16 bits."""
PATIENCE_S = 15
EMBEDDED_WHEEL_BYTES = 88_000_000


@dataclass(frozen=True)
class Stored:
    """Weight files in a folder: `bytes` of the files, `parameters` in them, None where only loading would tell."""

    bytes: int
    parameters: int | None


@dataclass(frozen=True)
class Remote:
    """What the hub says of a repository."""

    bytes: int
    gated: bool
    licence: str | None
    revision: str | None


def local_folder(config: TargetConfig | HeadConfig) -> Path | None:
    """The folder that holds the checkpoint on this machine; None while it has to be fetched or converted.

    Raises UsageError for a local folder that is not there.
    """
    if getattr(config, "embedded", False):
        folder = cache_dir() / FOLDER
        return folder if (folder / "model.safetensors").is_file() else None
    if getattr(config, "shipped", None):
        return shipped("heads") / config.shipped
    if config.path:
        folder = Path(config.path).expanduser()
        if not folder.is_dir():
            raise UsageError(f"{config.name}: there is no folder {config.path}; give a local checkpoint folder")
        return folder
    return _cached(config.hub, config.revision)


def source_of(config: TargetConfig | HeadConfig) -> str:
    """Where the configuration takes the checkpoint from, without a path of this machine."""
    if getattr(config, "embedded", False):
        return "embedded"
    if getattr(config, "shipped", None):
        return "shipped"
    return config.hub or "local folder"


def stored(folder: Path) -> Stored:
    """Sizes of the weight files in `folder` that loading reads, from their headers; of pickled ones only the bytes are known."""
    files = weight_files(folder)
    pickled = any(file.suffix == ".bin" for file in files)
    size = sum(file.stat().st_size for file in files)
    return Stored(size, None if pickled or not files else sum(_parameters(file) for file in files))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; UsageError when there is none, or it is no JSON object."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise UsageError(f"{folder.name} has no readable config.json; give the folder of a downloaded checkpoint")
    return config


def ask_hub(name: str, hub: str, revision: str | None) -> Remote:
    """Terms of a repository on the hub and the size of the files that loading needs; UsageError when the hub does not answer."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(hub, revision=revision, files_metadata=True, timeout=PATIENCE_S)
    except Exception as error:
        # The hub client raises errors of many libraries; all of them mean that nothing can be asked.
        raise UsageError(
            f"{name}: the hub says nothing of {hub} ({type(error).__name__}); check the id and the network,"
            " or leave plan.check_hub out"
        ) from error
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    size = sum(sizes[name] for name in needed(sizes))
    licence = getattr(info.card_data, "license", None) if info.card_data else None
    return Remote(size, bool(info.gated), licence, info.sha)


def _cached(hub: str, revision: str | None) -> Path | None:
    """The hub cache's complete snapshot of a repository, if there is one."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot(hub, revision, local_files_only=True)
    except HFValidationError as error:
        raise UsageError(f"{hub} is no hub id; expected OWNER/NAME") from error
    except (LocalEntryNotFoundError, OSError):
        return None
    return folder if is_complete(folder) else None


def _parameters(file: Path) -> int:
    """Floating-point numbers in a safetensors file, from its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as handle:
            slices = [handle.get_slice(name) for name in handle.keys()]  # noqa: SIM118 (not a mapping)
            return sum(prod(part.get_shape()) for part in slices if part.get_dtype() in ("F64", "F32", "F16", "BF16"))
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{file.name} is truncated or not a weight file; download it again") from error
