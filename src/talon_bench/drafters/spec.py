"""What a draft head is, apart from its weights: sizes, switches, and where each setting came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TargetShape:
    """The facts about a target that a head must fit."""

    name: str
    hidden_size: int
    vocab_size: int
    num_layers: int

    @property
    def default_feature_layers(self) -> tuple[int, int, int]:
        """EAGLE-3's feature layers as "states entering 0-based layer k": 2, n//2, n-3."""
        return (2, self.num_layers // 2, self.num_layers - 3)


@dataclass(frozen=True)
class HeadSpec:
    """A resolved draft-head configuration.

    `kind` is "eagle" (EAGLE-1 and EAGLE-2 share one format) or "eagle3". `feature_layers` follows one convention only:
    the state *entering* the 0-based decoder layer k; it is empty for "eagle", whose feature is the last hidden state
    after the target's final norm. `origins` names, for every setting, the key or rule that supplied it.
    """

    kind: Literal["eagle", "eagle3"]
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_factor: float
    """Linear RoPE scaling: positions are divided by it (1.0 = none)."""
    max_position_embeddings: int
    feature_layers: tuple[int, ...] = ()
    fc_bias: bool = False
    attention_bias: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    own_embedding: bool = False
    origins: dict[str, str] = field(default_factory=dict)
