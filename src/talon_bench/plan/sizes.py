"""Parameters and bytes of targets, draft heads and their caches, from sizes alone.

`architecture` is the target's `ArchitectureConfig`. Counts of parameters leave out rotary tables, which are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from talon_bench.errors import UsageError
from talon_bench.schema import ArchitectureConfig

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FEATURES = 3
"""Target layers that an EAGLE-3 head reads."""


@dataclass(frozen=True)
class TargetSize:
    """Parameters of a target; `output` is 0 where the output projection is the embedding."""

    embedding: int
    output: int
    layer: int
    layers: int
    norm: int

    @property
    def total(self) -> int:
        return self.embedding + self.output + self.layer * self.layers + self.norm


def target_size(architecture: ArchitectureConfig) -> TargetSize:
    """Parameters of a Llama, Qwen2 or Qwen3 decoder of these sizes."""
    hidden, width = architecture.hidden_size, architecture.head_dim
    query, key = architecture.heads * width, architecture.kv_heads * width
    attention = hidden * (query + 2 * key) + query * hidden
    extras = {"qwen2": query + 2 * key, "qwen3": 2 * width}.get(architecture.model_type, 0)
    vocabulary = architecture.vocab_size * hidden
    return TargetSize(
        embedding=vocabulary,
        output=0 if architecture.tied_embeddings else vocabulary,
        layer=attention + extras + 3 * hidden * architecture.intermediate_size + 2 * hidden,
        layers=architecture.layers,
        norm=hidden,
    )


def cache_bytes(architecture: ArchitectureConfig, positions: int, dtype_bytes: int) -> int:
    """Keys and values of all layers for so many positions."""
    return 2 * architecture.layers * architecture.kv_heads * architecture.head_dim * positions * dtype_bytes


def head_parameters(kind: str, architecture: ArchitectureConfig, draft_vocab: int | None) -> int:
    """Parameters of a one-layer head whose layer has the target's sizes, as the official heads have.

    kind "eagle2": fc [H, 2H], a layer without input norm, the target's embedding and output projection. kind "eagle3": fc
    [H, 3H], a layer that reads 2H, own norms and own output projection of `draft_vocab` rows (None: the target's).
    """
    hidden, width = architecture.hidden_size, architecture.head_dim
    query, key = architecture.heads * width, architecture.kv_heads * width
    mlp = 3 * hidden * architecture.intermediate_size
    if kind == "eagle2":
        return 2 * hidden * hidden + hidden * (2 * query + 2 * key) + mlp + 2 * hidden
    rows = draft_vocab or architecture.vocab_size
    attention = 2 * hidden * (query + 2 * key) + query * hidden
    return FEATURES * hidden * hidden + attention + mlp + 4 * hidden + rows * hidden


def architecture_of(config: dict[str, Any]) -> ArchitectureConfig:
    """The sizes in a target's config.json; UsageError for one that is not of the kinds that a plan knows."""
    lacking = [
        key
        for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        if not isinstance(config.get(key), int)
    ]
    if lacking:
        raise UsageError(f"config.json has no {lacking[0]}; a plan needs the sizes of a Llama, Qwen2 or Qwen3 decoder")
    heads = config["num_attention_heads"]
    kind = config.get("model_type", "llama")
    return ArchitectureConfig(
        # Mistral's decoder has Llama's parameters.
        model_type="llama" if kind == "mistral" else kind,
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        window=config.get("max_position_embeddings", 2048),
    )
