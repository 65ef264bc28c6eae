"""The target as the stages use it: batches of sequences instead of one tree."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from talon_bench.errors import UsageError
from talon_bench.loading import LoadedTarget, checkpoint_folder, load_target
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.training.schema import TrainConfig


def load(config: TrainConfig, workers: int) -> LoadedTarget:
    """The target in the stages' dtype, with stock layers; the cores are shared among `workers` processes.

    Loading checks that it takes a prepared mask and a cache, which `respond` relies on.
    """
    target = replace(config.target, dtype=config.training.dtype or config.target.dtype, fuse=False)
    launch = replace(config.launch, engine="eager")
    if launch.threads is None and workers > 1:
        launch = replace(launch, threads=max((os.cpu_count() or 1) // workers, 1))
    return load_target(target, launch)


def renderer(config: TrainConfig, tokenizer: Any) -> ChatRenderer:
    """The target's own chat template, as in a run."""
    return ChatRenderer(tokenizer, None, config.target.thinking, config.target.chat_template)


def settings(config: TrainConfig) -> dict[str, Any]:
    """What decides the target's outputs, apart from the checkpoint itself."""
    target = config.target
    return {
        "target": {
            **{name: getattr(target, name) for name in ("name", "path", "hub", "revision", "embedded")},
            **{name: getattr(target, name) for name in ("chat_template", "thinking")},
            "dtype": config.training.dtype or target.dtype,
        }
    }


def load_tokenizer(config: TrainConfig) -> Any:
    """The target's tokenizer alone."""
    from transformers import AutoTokenizer

    folder = checkpoint_folder(config.target)
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"target {config.target.name}: {folder.name} has no tokenizer that can be loaded") from error
