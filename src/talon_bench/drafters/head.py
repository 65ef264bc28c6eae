"""A draft head at work: one decoder layer over the target's features, with its own small key/value cache.

The two formats, `Eagle1Head` and `Eagle3Head`, differ in how a layer input is made and how logits are read off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.static_passes import StaticPasses
from talon_bench.fused import RMSNorm, attend, rotate
from talon_bench.packed import Linear
from talon_bench.target import Target


class DraftHead(ABC):
    """Shared by both formats: attention over own cache, MLP, rotary tables. Works in the target's dtype and device.

    Position i of the head holds feature i and token i + 1, and predicts token i + 2; its rotary position is i.
    """

    def __init__(self, loaded: LoadedHead, target: Target) -> None:
        self.name = loaded.name
        self.spec = loaded.spec
        self.device, self.dtype = target.device, target.dtype
        tensors = {
            name: tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)
            for name, tensor in loaded.tensors.items()
        }

        def linear(*names: str) -> Linear:
            """One layer for all projections of the same input."""
            biases = [tensors[f"{name}.bias"] for name in names if f"{name}.bias" in tensors]
            weight = torch.cat([tensors[f"{name}.weight"] for name in names])
            return Linear(weight, torch.cat(biases) if biases else None, pack=target.packed)

        attention, mlp = "layer.self_attn", "layer.mlp"
        self._fc = linear("fc")
        self._qkv = linear(*(f"{attention}.{name}_proj" for name in "qkv"))
        self._out = linear(f"{attention}.o_proj")
        self._gate_up = linear(f"{mlp}.gate_proj", f"{mlp}.up_proj")
        self._down = linear(f"{mlp}.down_proj")
        self._lm_head = linear("lm_head") if "lm_head.weight" in tensors else None
        self._norms = {
            name.removesuffix(".weight"): RMSNorm(tensor, self.spec.rms_norm_eps)
            for name, tensor in tensors.items()
            if "norm" in name
        }
        self._embedding = tensors.get("embed_tokens.weight", target.embedding)
        self._shift = tensors.get("d2t")
        self._target = target
        half = torch.arange(0, self.spec.head_dim, 2, dtype=torch.float32, device=self.device)
        self._frequencies = self.spec.rope_theta ** (-half / self.spec.head_dim) / self.spec.rope_factor
        self.cache = self._keys = self._values = self._rotary = None

    @property
    def capacity(self) -> int:
        """Positions that the cache has room for."""
        return 0 if self.cache is None else self.cache.shape[3]

    @property
    def feature_width(self) -> int:
        """Numbers per position that the target hands over."""
        return self.spec.target_hidden_size * max(1, len(self.spec.feature_layers))

    @cached_property
    def static_passes(self) -> StaticPasses:
        """This head's passes on the static engine."""
        return StaticPasses(self)

    def allocate(self, capacity: int) -> None:
        """Room for `capacity` positions, context and drafted rows together."""
        if self.capacity < capacity:
            shape = (2, 1, self.spec.num_kv_heads, capacity, self.spec.head_dim)
            self.cache = torch.zeros(shape, dtype=self.dtype, device=self.device)
            self._keys, self._values = self.cache
            angles = torch.arange(capacity, device=self.device)[:, None] * self._frequencies
            cos, sin = angles.cos(), angles.sin()
            tables = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
            self._rotary = tuple(table.to(self.dtype)[:, None] for table in tables)  # [capacity, 1, head_dim]

    def wipe(self, rows: Tensor) -> None:
        """Zero those of the first rows of the cache that bool [window] marks."""
        self.cache[..., : rows.shape[0], :].masked_fill_(rows[:, None], 0)

    def forward(
        self, tokens: Tensor, states: Tensor, positions: Tensor | slice, rows: Tensor | slice, mask: Tensor | None
    ) -> Tensor:
        """One pass: outputs [n, hidden], which are the states of the tokens drafted from them.

        tokens [n] (target ids), states [n, hidden] (fused features or earlier outputs), positions [n] (rotary) or one for all,
        rows: the n cache rows to write, mask: additive [n, rows looked at] or None (every row sees all up to rows.stop).
        """
        layer_input, residual = self._layer_input(F.embedding(tokens, self._embedding), states)
        hidden = residual + self._attention(layer_input, positions, rows, mask)
        gate, up = self._gate_up(self._norms["layer.post_attention_layernorm"](hidden)).chunk(2, dim=-1)
        return hidden + self._down(F.silu(gate) * up)

    def log_probs(self, outputs: Tensor) -> Tensor:
        """float32 [n, draft vocab] log-probabilities of the next token, at temperature 1 as the official code drafts."""
        return self.logits(outputs).float().log_softmax(-1)

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids: `d2t` holds the offsets."""
        return draft_ids if self._shift is None else draft_ids + self._shift[draft_ids]

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """States [n, hidden] of the target's features [n, features]."""

    @abstractmethod
    def logits(self, outputs: Tensor) -> Tensor:
        """[n, draft vocab] from outputs [n, hidden]."""

    @abstractmethod
    def _layer_input(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """(input of the attention [n, in], residual [n, hidden])."""

    def _attention(self, x: Tensor, positions: Tensor | slice, rows: Tensor | slice, mask: Tensor | None) -> Tensor:
        spec = self.spec
        rotated = spec.num_heads + spec.num_kv_heads
        qkv = self._qkv(x).view(-1, rotated + spec.num_kv_heads, spec.head_dim)
        qk = rotate(qkv[:, :rotated], *(table[positions] for table in self._rotary))[None]
        self._keys[:, :, rows] = qk[:, :, spec.num_heads :].transpose(1, 2)
        self._values[:, :, rows] = qkv[None, :, rotated:].transpose(1, 2)
        query = qk[:, :, : spec.num_heads].transpose(1, 2)
        window = rows.stop if mask is None else mask.shape[1]
        keys, values = self._keys[:, :, :window], self._values[:, :, :window]
        if mask is not None:
            mask = mask[None, None]
        return self._out(attend(query, keys, values, mask, spec.head_dim**-0.5)[0])
