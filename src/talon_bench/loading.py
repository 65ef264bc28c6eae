"""Loads targets and draft heads from a local folder, the hub, or what ships with the project."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass
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
from talon_bench.repository import snapshot, weight_files
from talon_bench.schema import HeadConfig, LaunchConfig, TargetConfig
from talon_bench.sharding import device_map, refuse_offloaded
from talon_bench.target import Target, why_eager

HASHED_BYTES = 4 << 30
"""Checkpoints up to this size are hashed in full; of larger ones the hub's commit and its own checksums are recorded."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LoadedTarget:
    target: Target
    tokenizer: Any
    eos_ids: frozenset[int]
    facts: dict[str, Any]
    """What is recorded of the checkpoint: source, revision, sha256, size, dtype, engine, bytes that a pass reads."""


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
    _check_architecture(config, folder)
    dtype = _dtype(config.dtype, device)
    placing = device_map(launch.shard, device)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **placing)
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
    if placing:
        refuse_offloaded(model, config.name)
    else:
        model.to(device)
    static = _is_static(launch.engine, model, device, config.name)
    target = Target.wrap(model, config.name, fuse_layers=fuse, pack=fuse, static=static)
    facts = {
        "name": config.name,
        "source": "embedded" if config.embedded else config.hub or "local folder",
        "revision": revision,
        **_checkpoint_facts(folder),
        "dtype": str(target.dtype).removeprefix("torch."),
        "engine": "fused" if target.fused else "stock",
        "packed": target.packed,
        "passes": "static" if target.static else "eager",
        "window": target.window,
        "pass_bytes": {"weights": target.weight_bytes, "row": target.row_bytes},
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
    folder, revision = _folder(config)
    loaded = load_head(folder, target.shape, name=config.name, rope_theta=config.rope_theta, feature_layers=layers)
    if (loaded.spec.kind == "eagle3") != (kind == "eagle3"):
        found = "eagle3" if kind == "eagle2" else "eagle2"
        raise UsageError(f"head.{kind} holds a head of kind {found} ({config.name}); give it as head.{found}")
    stated = {"draft_vocab": config.draft_vocab, "window": config.window}
    read = {"draft_vocab": loaded.spec.draft_vocab_size, "window": loaded.spec.max_position_embeddings}
    _refuse_difference(f"head {config.name}", f"head.{kind}", stated, read)
    loaded.spec.origins["checkpoint"] = _origin(config, revision)
    head = (Eagle3Head if loaded.spec.kind == "eagle3" else Eagle1Head)(loaded, target)
    target.tap(loaded.spec.feature_layers)
    return head, loaded


def _check_architecture(config: TargetConfig, folder: Path) -> None:
    """Refuse, before any weights are read, a checkpoint whose config.json contradicts `target.architecture`."""
    from transformers import AutoConfig

    if config.architecture is None:
        return
    try:
        found = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        message = f"target {config.name}: {folder.name} has no usable config.json ({_one_line(error)}); fetch it again"
        raise UsageError(message) from error
    hidden, heads = getattr(found, "hidden_size", 0), getattr(found, "num_attention_heads", 1)
    sizes = {
        "model_type": found.model_type,
        "layers": getattr(found, "num_hidden_layers", None),
        "hidden_size": hidden,
        "intermediate_size": getattr(found, "intermediate_size", None),
        "heads": heads,
        "kv_heads": getattr(found, "num_key_value_heads", None),
        "head_dim": getattr(found, "head_dim", None) or hidden // heads,
        "vocab_size": getattr(found, "vocab_size", None),
        "tied_embeddings": bool(getattr(found, "tie_word_embeddings", False)),
        "window": getattr(found, "max_position_embeddings", None),
    }
    _refuse_difference(f"target {config.name}", "target.architecture", asdict(config.architecture), sizes)


def _refuse_difference(what: str, key: str, stated: dict[str, Any], found: dict[str, Any]) -> None:
    """UsageError for the first stated value, where there is one, that the checkpoint contradicts."""
    for name, value in stated.items():
        if value is not None and value != found[name]:
            raise UsageError(
                f"{what}: config.json has {name} {found[name]}, {key}.{name} says {value};"
                " use the checkpoint that the configuration describes, or correct the configuration"
            )


def _origin(config: HeadConfig, revision: str | None) -> str:
    """Where a head's files come from: hub id and commit, the folder of heads/, or just that it was a local folder."""
    if config.hub:
        return f"{config.hub}@{revision}"
    return f"heads/{config.shipped}" if config.shipped else "local folder"


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
    try:
        folder = snapshot(config.hub, config.revision)
    except Exception as error:
        # The hub client raises errors of many libraries; all of them mean that the checkpoint cannot be had.
        raise UsageError(
            f"{config.name}: {config.hub} cannot be fetched from the hub ({_one_line(error)});"
            f" {_access(config)}, or give a local folder as path"
        ) from error
    return folder, folder.name


def _is_static(engine: str, model: Any, device: torch.device, name: str) -> bool:
    """Whether `launch.engine` means the static engine here; says why where a model that should have it cannot."""
    if engine == "eager" or (engine == "auto" and device.type != "cuda"):
        return False
    if reason := why_eager(model):
        print(f"note: target {name} runs on the eager engine, because {reason}", file=sys.stderr)
    return reason is None


def _access(config: TargetConfig | HeadConfig) -> str:
    """What opens a repository of the hub that could not be read."""
    if getattr(config, "gated", False):
        return f"it is gated: accept its licence ({config.licence}) on the hub and log in"
    return "check the id, log in for gated models"


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
    files = weight_files(folder)
    size = sum(file.stat().st_size for file in files)
    note = folder / "source.json"
    return {
        "weight_bytes": size,
        "sha256": sha256_of(*files) if files and size <= HASHED_BYTES else None,
        **({"files": named} if (named := _named_by_the_hub(files)) else {}),
        **({"origin": json.loads(note.read_text())} if note.is_file() else {}),
    }


def _named_by_the_hub(files: list[Path]) -> dict[str, str]:
    """SHA-256 by file name, where the files are links to blobs that the hub's cache names by it; else nothing."""
    digests = {file.name: file.resolve().name for file in files}
    return digests if all(_SHA256.fullmatch(digest) for digest in digests.values()) else {}


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:200].replace(str(Path.home()) + os.sep, "~/")
