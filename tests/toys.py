"""Toy targets and draft heads on disk: real formats, real tokenizer, random weights, a few hundred kilobytes.

The targets' residual stream is dominated by the token embedding, and the heads copy that shortcut, so a toy
head is right often enough for paths of several tokens and wrong often enough for rejections.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
KINDS = ("eagle", "eagle3")
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHARACTERS = ["\n", *map(chr, range(32, 127))]
VOCAB_SIZE = len(SPECIAL) + len(CHARACTERS)
BOS, EOS = 1, (2, 4)
LAYERS = 8
DRAFT_VOCAB = 80
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
    "mistral": {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "sliding_window": None,
    },
    "qwen2": {
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16},
}
"""Groups of 2, 1, 3 and 4 heads per key/value head; a tied output; heads wider than hidden_size / heads."""


def write_toy_target(folder: Path, architecture: str = "llama", seed: int = 0, **overrides: object) -> Path:
    """A target checkpoint in `folder`: config, float32 safetensors, tokenizer with a chat template.

    `overrides` replace keys of config.json. The tokenizer knows printable ASCII, one token a character.
    """
    folder = Path(folder)
    settings = {
        "vocab_size": VOCAB_SIZE,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 56,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": BOS,
        "eos_token_id": list(EOS),
        **_SIZES[architecture],
        **overrides,
    }
    config = AutoConfig.for_model(architecture, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fill(model, seed)
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=list(EOS), pad_token_id=EOS[0])
    model.save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def fill(model: torch.nn.Module, seed: int) -> None:
    """Random weights under which tokens and context both matter, so that greedy text varies with the prompt."""
    generator = torch.Generator().manual_seed(seed)
    gains = {"lm_head": 2.5, "q_proj": 1.5, "k_proj": 1.5}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name == "model.norm.weight":
            # Mixed signs: with a tied output, a token would otherwise predict itself for ever.
            parameter.copy_(noise.sign() + 0.1 * noise)
        elif "norm" in name:
            parameter.copy_(1 + 0.1 * noise)
        elif name.endswith("bias"):
            parameter.copy_(0.1 * noise)
        elif "embed_tokens" in name:
            parameter.copy_(noise)
        else:
            parameter.copy_(noise * gains.get(name.split(".")[-2], 0.6) * parameter.shape[1] ** -0.5)
    model.get_output_embeddings().weight[list(EOS)] *= 0.5


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character of printable ASCII, `<unk>` for the rest."""
    vocab = {token: number for number, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="</s>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def write_toy_head(folder: Path, kind: str, target: Path, seed: int = 0) -> Path:
    """A head of `kind` "eagle" (EAGLE-1/2) or "eagle3", in official format, for the target in folder `target`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((Path(target) / "config.json").read_text())
    weights = load_file(Path(target) / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    made = _eagle3(weights, generator) if kind == "eagle3" else _eagle(weights, generator)
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config["hidden_size"],
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 4 if kind == "eagle3" else 2,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB_SIZE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
    }
    if kind == "eagle3":
        settings["draft_vocab_size"] = DRAFT_VOCAB
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    save_file({name: tensor.contiguous() for name, tensor in made.items()}, folder / "model.safetensors")
    return folder


def _eagle(weights: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """State i + 1 is guessed to be the embedding of token i + 1 under the target's final norm."""
    norm = weights["model.norm.weight"]
    hidden = norm.shape[0]
    fc = _random((hidden, 2 * hidden), 0.15, generator)
    fc[:, :hidden] += torch.diag(norm)
    tensors = {"fc.weight": fc, "fc.bias": _random((hidden,), 0.02, generator)}
    layer = _layer(hidden, hidden, kv_heads=2, generator=generator)
    return tensors | {f"layers.0.{name}": tensor for name, tensor in layer.items()}


def _eagle3(weights: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Sharp attention of a token to itself adds its embedding and takes the incoming state off."""
    norm = weights["model.norm.weight"]
    hidden = norm.shape[0]
    layer = _layer(2 * hidden, hidden, kv_heads=4, generator=generator)
    eye, zero = torch.eye(hidden), torch.zeros(hidden, hidden)
    for name in "qk":
        layer[f"self_attn.{name}_proj.weight"] += torch.cat([3 * eye, zero], dim=1)
    layer["self_attn.v_proj.weight"] += torch.cat([eye, -eye], dim=1)
    layer["self_attn.o_proj.weight"] += eye
    for name in ("hidden_norm", "input_layernorm"):
        layer[f"{name}.weight"] = 1 + _random((hidden,), 0.1, generator)
    draft_ids = torch.randperm(VOCAB_SIZE, generator=generator)[:DRAFT_VOCAB].sort().values
    lm_head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return {
        "fc.weight": _random((hidden, 3 * hidden), 0.8, generator),
        **{f"midlayer.{name}": tensor for name, tensor in layer.items()},
        "norm.weight": norm.clone(),
        "lm_head.weight": lm_head[draft_ids],
        "d2t": draft_ids - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, draft_ids, True),
    }


def _layer(width: int, hidden: int, kv_heads: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A random decoder layer of 4 heads whose attention reads `width` and whose contribution is small."""
    kv_rows = kv_heads * hidden // 4
    shapes = {
        "self_attn.q_proj.weight": (hidden, width),
        "self_attn.k_proj.weight": (kv_rows, width),
        "self_attn.v_proj.weight": (kv_rows, width),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (40, hidden),
        "mlp.up_proj.weight": (40, hidden),
        "mlp.down_proj.weight": (hidden, 40),
    }
    layer = {name: _random(shape, 0.3, generator) for name, shape in shapes.items()}
    return layer | {"post_attention_layernorm.weight": 1 + _random((hidden,), 0.1, generator)}


def _random(shape: tuple[int, ...], gain: float, generator: torch.Generator) -> Tensor:
    """Normal noise; a matrix's products have `gain` times the size of its inputs."""
    fan_in = shape[1] if len(shape) > 1 else 1
    return torch.randn(shape, generator=generator) * gain * fan_in**-0.5
