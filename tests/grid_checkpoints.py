"""Every target and head of conf/ in small: the same architecture and the same files on disk, a few hundred kilobytes each."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from talon_bench.schema import ArchitectureConfig, Config, HeadConfig, TargetConfig
from tiny_heads import write
from toys import CHAT_TEMPLATE, DRAFT_VOCAB, LAYERS, VOCAB_SIZE, toy_tokenizer, write_toy_head, write_toy_target

DIM = 8
"""Head dimension of every small target."""
PICKLED = ("lmsys/",)
"""Publishers whose targets are pickled shards with an index; all others here are safetensors shards with an index."""
WITHOUT_FC_BIAS = ("EAGLE-LLaMA3-Instruct-8B", "EAGLE-LLaMA3.1-Instruct-8B")
NARROWER = ("EAGLE3-LLaMA3.3-Instruct-70B",)
"""Heads with a hidden size of their own, which therefore bring an embedding."""
LLAMA_3_1_WINDOW = 131072
THINKING_TEMPLATE = CHAT_TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}",
)


def shrink(real: ArchitectureConfig) -> ArchitectureConfig:
    """The same family, grouping of heads, width of the heads against the hidden size, tying and window; 8 layers."""
    group = real.heads // real.kv_heads
    kv_heads = 1 if group > 1 else 2
    heads = group * kv_heads
    return replace(
        real,
        layers=LAYERS,
        hidden_size=heads * DIM * real.hidden_size // (real.heads * real.head_dim),
        intermediate_size=56,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=DIM,
        vocab_size=VOCAB_SIZE,
    )


def write_small(config: Config, root: Path) -> tuple[TargetConfig, dict[str, HeadConfig]]:
    """The composed target and heads, written below `root` in small, and their configuration pointed at the files."""
    real = config.target.architecture
    small = shrink(real)
    folder = _write_target(root / "target", config.target, small)
    heads = {}
    for kind, head in config.head.items():
        heads[kind] = _write_head(root / kind, folder, kind, head, real)
    _store(folder, config.target)
    own = {"hub": None, "embedded": False, "revision": None, "path": str(folder), "dtype": "float32"}
    return replace(config.target, **own, architecture=small), heads


def _write_target(folder: Path, target: TargetConfig, small: ArchitectureConfig) -> Path:
    """One safetensors file, from which the heads are made; `_store` brings it into the form of the original."""
    names = {"hidden_size", "intermediate_size", "head_dim"}
    sizes = {name: value for name, value in asdict(small).items() if name in names}
    rope = {"rope_theta": 500000.0, "rope_type": "default"}
    if small.window == LLAMA_3_1_WINDOW:
        rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {"original_max_position_embeddings": 8192}
    write_toy_target(
        folder,
        small.model_type,
        num_attention_heads=small.heads,
        num_key_value_heads=small.kv_heads,
        max_position_embeddings=small.window,
        tie_word_embeddings=small.tied_embeddings,
        rope_parameters=rope,
        **sizes,
    )
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = THINKING_TEMPLATE if target.thinking is not None else CHAT_TEMPLATE
    if target.chat_template is not None:
        tokenizer.chat_template = None
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    return folder


def _store(folder: Path, target: TargetConfig) -> None:
    """Two shards and an index in place of the one file, for targets of the hub."""
    if not target.hub:
        return
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if target.hub.startswith(PICKLED):
        # These files are from a time when rotary tables were saved as well.
        names = [f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(LAYERS)]
        write(folder, None, tensors | {name: torch.ones(DIM // 2) for name in names}, "sharded-bin")
    else:
        write(folder, None, tensors, "sharded-safetensors")


def _write_head(folder: Path, target: Path, kind: str, head: HeadConfig, real: ArchitectureConfig) -> HeadConfig:
    """A head in its writer's layout: safetensors for the shipped ones, one pickled file for those of the hub."""
    write_toy_head(folder, "eagle3" if kind == "eagle3" else "eagle", target)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weights = load_file(target / "model.safetensors")
    config["max_position_embeddings"] = head.window or 2048
    if kind == "eagle3":
        vocab = DRAFT_VOCAB
        if head.draft_vocab == real.vocab_size:
            vocab = config["draft_vocab_size"] = VOCAB_SIZE
            tensors |= _whole_vocabulary(weights)
        if head.name in NARROWER:
            config, tensors = _narrower(config, tensors, weights)
    else:
        vocab = None
        _finish_eagle(config, tensors, weights, head, real)
    if "AngelSlim" in (head.hub or ""):
        config |= {"architectures": ["Eagle3LlamaForCausalLM"], "rope_theta": 1000000, "rope_scaling": None}
    write(folder, config, tensors, "safetensors" if head.shipped else "bin")
    stated = vocab if head.draft_vocab else None
    return replace(head, hub=None, shipped=None, revision=None, path=str(folder), draft_vocab=stated)


def _whole_vocabulary(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output projection and maps of a head whose draft vocabulary is the target's."""
    return {
        "lm_head.weight": weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).clone(),
        "d2t": torch.zeros(VOCAB_SIZE, dtype=torch.int64),
        "t2d": torch.ones(VOCAB_SIZE, dtype=torch.bool),
    }


def _finish_eagle(
    config: dict, tensors: dict[str, Tensor], weights: dict[str, Tensor], head: HeadConfig, real: ArchitectureConfig
) -> None:
    """What sets EAGLE-1/2 heads apart: the embedding in files of the hub, biases of fc, of q, k and v."""
    if not head.shipped:
        tensors["embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    if head.name in WITHOUT_FC_BIAS:
        del tensors["fc.bias"]
        config |= {"bias": False, "rope_theta": 500000.0}
    if real.model_type == "qwen2":
        config |= {"qkv_bias": True, "rope_theta": 1000000.0, "model_type": "qwen2"}
        for name in "qkv":
            rows = tensors[f"layers.0.self_attn.{name}_proj.weight"].shape[0]
            tensors[f"layers.0.self_attn.{name}_proj.bias"] = torch.full((rows,), 0.05)


def _narrower(config: dict, tensors: dict[str, Tensor], weights: dict[str, Tensor]) -> tuple[dict, dict[str, Tensor]]:
    """A random head of half the target's width, on features of the target, with an embedding of its own."""
    generator = torch.Generator().manual_seed(0)
    wide = config["hidden_size"]
    h = wide // 2
    shapes = {"fc.weight": (h, 3 * wide), "norm.weight": (h,), "lm_head.weight": (DRAFT_VOCAB, h)}
    shapes |= {"embed_tokens.weight": (VOCAB_SIZE, h), "midlayer.self_attn.o_proj.weight": (h, h)}
    shapes |= {f"midlayer.self_attn.{name}_proj.weight": (h, 2 * h) for name in "qkv"}
    shapes |= {f"midlayer.mlp.{name}_proj.weight": (40, h) for name in ("gate", "up")}
    shapes |= {"midlayer.mlp.down_proj.weight": (h, 40)}
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    shapes |= {f"midlayer.{name}.weight": (h,) for name in norms}
    made = {
        name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    maps = {name: tensors[name] for name in ("d2t", "t2d")}
    return config | {"hidden_size": h, "target_hidden_size": wide}, made | maps
