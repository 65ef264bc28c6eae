"""Writes a trained head in the official format of its kind, with a card that says how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from talon_bench import atomic
from talon_bench.drafters.checkpoint import load_head
from talon_bench.drafters.spec import HeadSpec, TargetShape
from talon_bench.loading import checkpoint_folder
from talon_bench.training import stage
from talon_bench.training.build import trainee_of
from talon_bench.training.card import card
from talon_bench.training.checkpoint import Checkpoint, read_points
from talon_bench.training.evaluate import STEPS
from talon_bench.training.schema import TrainConfig
from talon_bench.training.trainer import FOLDER, averaged

HEADS = "heads"


def export(config: TrainConfig, work: Path) -> Path:
    """Write `work`/heads/NAME: config.json, model.safetensors in bfloat16 and README.md; the folder.

    Raises UsageError where the training is not finished. What is written is read back by the loader of every run.
    """
    from transformers import AutoConfig

    name = config.trainer.folder
    stage.digest(work, f"{FOLDER}/{name}")
    trained = work / FOLDER / name
    saved = Checkpoint.load(trained)
    model = AutoConfig.from_pretrained(checkpoint_folder(config.target))
    folder = work / HEADS / name
    folder.mkdir(parents=True, exist_ok=True)
    tensors = official_tensors(saved)
    stage.write_json(folder / "config.json", official_config(saved.spec, model))
    atomic.replace(folder / "model.safetensors", lambda part: save_file(tensors, part, {"format": "pt"}))
    shape = TargetShape(config.target.name, model.hidden_size, model.vocab_size, model.num_hidden_layers)
    loaded = load_head(folder, shape, name=name)
    parameters = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    text = card(config, work, loaded, parameters, read_points(trained), STEPS)
    atomic.replace(folder / "README.md", lambda part: part.write_text(text, encoding="utf-8"))
    return folder


def official_tensors(saved: Checkpoint) -> dict[str, Tensor]:
    """bfloat16 weights under the official names; `d2t` holds offsets, `t2d` marks the draft vocabulary."""
    spec = saved.spec
    # The embedding is the target's and not in the file; none of its values are read here.
    trainee = trainee_of(spec, torch.empty(spec.vocab_size, 0), saved.weights["scale"])
    trainee.load_state_dict(saved.weights)
    with averaged(list(trainee.parameters()), saved.average):
        tensors = trainee.tensors()
    place = "midlayer." if spec.kind == "eagle3" else "layers.0."
    made = {
        place + name.removeprefix("layer.") if name.startswith("layer.") else name: tensor.bfloat16().contiguous()
        for name, tensor in tensors.items()
    }
    if spec.kind == "eagle3":
        made["d2t"] = saved.ids - torch.arange(spec.draft_vocab_size)
        made["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool).index_fill_(0, saved.ids, True)
    return made


def official_config(spec: HeadSpec, model: Any) -> dict[str, Any]:
    """config.json as EAGLE's own loaders read it; model: the target's transformers config, for its special tokens."""
    found = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "vocab_size": spec.vocab_size,
        "rope_theta": spec.rope_theta,
        "max_position_embeddings": spec.max_position_embeddings,
        "bos_token_id": model.bos_token_id,
        "eos_token_id": model.eos_token_id,
        "pad_token_id": model.pad_token_id,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
    }
    if spec.head_dim * spec.num_heads != spec.hidden_size:
        found["head_dim"] = spec.head_dim
    if spec.kind != "eagle3":
        return found | {"bias": False}
    found["draft_vocab_size"] = spec.draft_vocab_size
    usual = TargetShape("", spec.target_hidden_size, spec.vocab_size, model.num_hidden_layers).default_feature_layers
    if spec.feature_layers != usual:
        found["eagle_aux_hidden_state_layer_ids"] = list(spec.feature_layers)
    return found
