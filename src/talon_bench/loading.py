"""Loads targets and draft heads from a local folder, the hub, or what ships with the project."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from talon_bench.checksum import sha256_of
from talon_bench.drafters.checkpoint import LoadedHead, load_head
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.head import DraftHead
from talon_bench.embedded import ensure_embedded_target
from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.schema import HeadConfig, LaunchConfig, TargetConfig
from talon_bench.target import Target

HASHED_BYTES = 4 << 30
"""Checkpoints up to this size are hashed in full; of larger ones the hub's commit and the file sizes are recorded."""


@dataclass(frozen=True)
class LoadedTarget:
    target: Target
    tokenizer: Any
    eos_ids: frozenset[int]
    facts: dict[str, Any]
    """What is recorded of the checkpoint: source, revision, sha256, size, dtype, engine."""


def resolve_device(name: str) -> torch.device:
    """The device of `launch.device`; UsageError for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"launch.device is {name}; expected auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"launch.device is {name}; this machine has {torch.cuda.device_count()} GPUs that torch can use"
        )
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"launch.device is {name}; expected auto, cpu, cuda or cuda:N")
    return device


def load_target(config: TargetConfig, launch: LaunchConfig) -> LoadedTarget:
    """Load tokenizer and model, put the model on its device, with the threads that `launch` asks for, and wrap it."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    if launch.threads:
        torch.set_num_threads(launch.threads)
    device = resolve_device(launch.device)
    folder, revision = _folder(config)
    dtype = _dtype(config.dtype, device)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"target {config.name}: {folder.name} cannot be loaded ({_one_line(error)})") from error
    if missing := sorted(loading["missing_keys"]):
        # transformers fills them with random numbers and only warns.
        raise UsageError(
            f"target {config.name}: {folder.name} lacks {', '.join(missing[:4])}; fetch the checkpoint again"
        )
    fuse = config.fuse if config.fuse is not None else device.type == "cpu" and model.dtype is torch.bfloat16
    if fuse and device.type != "cpu":
        raise UsageError("target.fuse is the CPU engine; leave it null on a GPU")
    target = Target.wrap(model.to(device), config.name, fuse_layers=fuse, pack=fuse)
    facts = {
        "name": config.name,
        "source": "embedded" if config.embedded else config.hub or "local folder",
        "revision": revision,
        **_checkpoint_facts(folder),
        "dtype": str(target.dtype).removeprefix("torch."),
        "engine": "fused" if target.fused else "stock",
        "packed": target.packed,
        "window": target.window,
    }
    return LoadedTarget(target, tokenizer, _eos_ids(model, tokenizer), facts)


def checkpoint_folder(config: TargetConfig | HeadConfig) -> Path:
    """The local folder of a checkpoint, fetched or converted first where needed."""
    return _folder(config)[0]


def load_draft_head(kind: str, config: HeadConfig, target: Target) -> tuple[DraftHead, LoadedHead]:
    """Load, check and build the head for `target`, which then records the features that the head reads.

    `kind` is the head's key in the config, "eagle2" or "eagle3"; UsageError when the checkpoint is of the other kind.
    """
    layers = tuple(config.feature_layers) if config.feature_layers else None
    loaded = load_head(
        checkpoint_folder(config), target.shape, name=config.name, rope_theta=config.rope_theta, feature_layers=layers
    )
    if (loaded.spec.kind == "eagle3") != (kind == "eagle3"):
        found = "eagle3" if kind == "eagle2" else "eagle2"
        raise UsageError(f"head.{kind} holds a head of kind {found} ({config.name}); give it as head.{found}")
    head = (Eagle3Head if loaded.spec.kind == "eagle3" else Eagle1Head)(loaded, target)
    target.tap(loaded.spec.feature_layers)
    return head, loaded


def _folder(config: TargetConfig | HeadConfig) -> tuple[Path, str | None]:
    """(local folder, hub commit): downloads from the hub where the config says so."""
    if getattr(config, "embedded", False):
        return ensure_embedded_target(), None
    if getattr(config, "shipped", None):
        return shipped("heads") / config.shipped, None
    if config.path:
        folder = Path(config.path).expanduser()
        if not folder.is_dir():
            raise UsageError(f"{config.name}: there is no folder {config.path}; give a local checkpoint folder")
        return folder, None
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.bin", "*.model", "*.jinja", "*.txt"]
    try:
        folder = Path(snapshot_download(config.hub, revision=config.revision, allow_patterns=patterns))
    except Exception as error:
        # The hub client raises errors of many libraries; all of them mean that the checkpoint cannot be had.
        raise UsageError(
            f"{config.name}: {config.hub} cannot be fetched from the hub ({_one_line(error)});"
            " check the id, log in for gated models, or give a local folder as path"
        ) from error
    return folder, folder.name


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    if name != "auto":
        return getattr(torch, name)
    return "auto" if device.type == "cuda" else torch.bfloat16


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Union of the stop ids that the generation config, the model config and the tokenizer name."""
    ids: set[int] = set()
    for found in (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id):
        ids.update([found] if isinstance(found, int) else found or [])
    return frozenset(ids)


def _checkpoint_facts(folder: Path) -> dict[str, Any]:
    files = sorted(file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern))
    size = sum(file.stat().st_size for file in files)
    note = folder / "source.json"
    return {
        "weight_bytes": size,
        "sha256": sha256_of(*files) if files and size <= HASHED_BYTES else None,
        **({"origin": json.loads(note.read_text())} if note.is_file() else {}),
    }


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:200].replace(str(Path.home()) + os.sep, "~/")
