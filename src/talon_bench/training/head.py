"""Draft heads that learn: the forward passes of `drafters`, differentiable, over whole answers and drafted chains.

Position i of a head holds feature i and token i + 1, and predicts token i + 2. The first step of a rollout stands at every
such row with the target's own features. Step j continues from there: at position i + j it takes the head's output of step
j - 1 and token i + j + 1, and sees the first step's keys up to position i and the keys of its own steps 1 to j, exactly
what `HeadDrafter` computes when it drafts a chain ("training-time test", EAGLE-3 paper, section 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.spec import HeadSpec
from talon_bench.errors import UsageError
from talon_bench.fused import rotate
from talon_bench.training.autograd import ChainAttention, RMSNorm
from talon_bench.training.batch import Batch

_SWITCHES = (
    "fc_bias",
    "attention_bias",
    "norm_before_residual",
    "norm_output",
    "fc_norm",
    "norm_before_fc",
    "own_embedding",
)
LOGIT_SPREAD = 0.5
"""Standard deviation of an untrained head's logits. With rows as large as the target's own it starts far above ln V."""


class Trainee(nn.Module, ABC):
    """A head in training. Parameters have the canonical names of docs/checkpoints.md and are float32.

    embedding: [vocab, hidden], the target's, frozen. scale: [input width of `fc`], by which that input is divided;
    `tensors` folds it into `fc`. Activations have the dtype of the batch's features.
    """

    def __init__(self, spec: HeadSpec, embedding: Tensor, scale: Tensor) -> None:
        super().__init__()
        if found := [switch for switch in _SWITCHES if getattr(spec, switch)]:
            raise UsageError(
                f"the head to go on from has {found[0]}, which the trainer does not know; start without it"
            )
        self.spec = spec
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("scale", scale)
        hidden, inner = spec.hidden_size, spec.intermediate_size
        width = 2 * hidden if spec.kind == "eagle3" else hidden
        q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.fc = _Matrix(scale.shape[0], hidden)
        self.layer = nn.Module()
        self.layer.self_attn = nn.Module()
        self.layer.self_attn.q_proj = _Matrix(width, q_rows)
        self.layer.self_attn.k_proj = _Matrix(width, kv_rows)
        self.layer.self_attn.v_proj = _Matrix(width, kv_rows)
        self.layer.self_attn.o_proj = _Matrix(q_rows, hidden)
        self.layer.mlp = nn.Module()
        self.layer.mlp.gate_proj = _Matrix(hidden, inner)
        self.layer.mlp.up_proj = _Matrix(hidden, inner)
        self.layer.mlp.down_proj = _Matrix(inner, hidden)
        self.layer.post_attention_layernorm = _Norm(hidden, spec.rms_norm_eps)
        half = torch.arange(0, spec.head_dim, 2, dtype=torch.float32)
        frequencies = spec.rope_theta ** (-half / spec.head_dim) / spec.rope_factor
        self.register_buffer("_frequencies", frequencies, persistent=False)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Matrices that keep the size of their inputs, the two that add to the residual half of it; norms of one."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            gain = 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (gain * parameter.shape[1] ** -0.5))

    @torch.no_grad()
    def load(self, loaded: LoadedHead) -> None:
        """Take the weights of a head on disk, which has this head's spec."""
        for name, parameter in self.named_parameters():
            tensor = loaded.tensors[name].float()
            parameter.copy_(tensor * self.scale if name == "fc.weight" else tensor)

    def tensors(self) -> dict[str, Tensor]:
        """float32 copies under canonical names, with which a head of `drafters` computes what this one does."""
        found = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}
        found["fc.weight"] /= self.scale
        return found

    def rollout(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        """Outputs [rows, hidden] of each of `steps` steps; where `batch.valid` is false they mean nothing."""
        qkv_weight = torch.cat([getattr(self.layer.self_attn, f"{name}_proj").weight for name in "qkv"])
        embedded, weight = self._prepare(F.embedding(batch.tokens, self.embedding).to(batch.features.dtype), qkv_weight)
        tables = self._tables(batch, steps)
        qkv, residual = self._project(self._fuse(batch.features), embedded[1:], weight)
        query, keys, values = self._heads(qkv, tables, batch.positions)
        outputs, chain = None, []
        query, residual = query.index_select(0, batch.rows), residual.index_select(0, batch.rows)
        for step in range(steps):
            if step:
                here = embedded.index_select(0, batch.ahead(step))
                qkv, residual = self._project(outputs, here, weight)
                query, *own = self._heads(qkv, tables, batch.positions[batch.rows] + step)
                chain += own
            attended = ChainAttention.apply(query, keys, values, batch.blocks, *chain)
            hidden = residual + self.layer.self_attn.o_proj(attended.flatten(1))
            outputs = hidden + self._mlp(self.layer.post_attention_layernorm(hidden))
            yield outputs

    @abstractmethod
    def read(self, outputs: Tensor) -> Tensor:
        """What the output projection is applied to, [n, hidden]."""

    @abstractmethod
    def _prepare(self, embedded: Tensor, qkv_weight: Tensor) -> tuple[Tensor, Tensor]:
        """(each token's part of the layer input, [n, ..], of its embedding [n, hidden]; the matrix for the states' part)."""

    @abstractmethod
    def _fuse(self, features: Tensor) -> Tensor:
        """States [n, hidden] of the target's features [n, features]."""

    @abstractmethod
    def _project(self, states: Tensor, embedded: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(query, key and value of all heads side by side, [n, ..]; residual [n, hidden])."""

    def _heads(self, qkv: Tensor, tables: tuple[Tensor, Tensor], positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """query [n, heads, d] and key [n, kv_heads, d], turned to their positions, and value [n, kv_heads, d]."""
        spec = self.spec
        turned = spec.num_heads + spec.num_kv_heads
        qkv = qkv.unflatten(1, (-1, spec.head_dim))
        qk = rotate(qkv[:, :turned], *(table[positions] for table in tables))
        return qk[:, : spec.num_heads], qk[:, spec.num_heads :], qkv[:, turned:]

    def _tables(self, batch: Batch, steps: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin, [positions, 1, d], for `fused.rotate`."""
        last = int(batch.positions.max()) + steps
        angles = torch.arange(last, device=self._frequencies.device)[:, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        tables = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return tuple(table.to(batch.features.dtype)[:, None] for table in tables)

    def _mlp(self, x: Tensor) -> Tensor:
        mlp = self.layer.mlp
        return mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))


class Eagle3Trainee(Trainee):
    """h = fc(features), or an earlier output; attention reads [norm(embedding), norm(h)] and adds to h.

    The embedding's half of q, k and v is one product for all steps.
    """

    def __init__(self, spec: HeadSpec, embedding: Tensor, scale: Tensor) -> None:
        super().__init__(spec, embedding, scale)
        self.layer.hidden_norm = _Norm(spec.hidden_size, spec.rms_norm_eps)
        self.layer.input_layernorm = _Norm(spec.hidden_size, spec.rms_norm_eps)
        self.norm = _Norm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = _Matrix(spec.hidden_size, spec.draft_vocab_size)

    @torch.no_grad()
    def start_from(self, rows: Tensor) -> None:
        """Output projection from the target's rows [draft vocab, hidden], small enough for logits of `LOGIT_SPREAD`."""
        self.lm_head.weight.copy_(rows.float() * (LOGIT_SPREAD / rows.float().norm(dim=-1).mean()))

    def read(self, outputs: Tensor) -> Tensor:
        return self.norm(outputs)

    def _prepare(self, embedded: Tensor, qkv_weight: Tensor) -> tuple[Tensor, Tensor]:
        for_embedding, for_state = qkv_weight.chunk(2, dim=1)
        return _product(self.layer.input_layernorm(embedded), for_embedding), for_state

    def _fuse(self, features: Tensor) -> Tensor:
        return _product(features, self.fc.weight / self.scale)

    def _project(self, states: Tensor, embedded: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return _product(self.layer.hidden_norm(states), weight) + embedded, states


class Eagle1Trainee(Trainee):
    """x = fc([embedding of token i + 1, feature i]), one decoder layer without input norm (EAGLE paper, section 3).

    The embedding's half of `fc` is one product for all steps.
    """

    @torch.no_grad()
    def start_from(self, rows: Tensor) -> None:
        """Outputs small enough for logits of `LOGIT_SPREAD` under rows [n, hidden] of the target's output projection."""
        gain = LOGIT_SPREAD / rows.float().norm(dim=-1).mean()
        self.fc.weight.mul_(gain)
        self.layer.mlp.down_proj.weight.mul_(gain)

    def read(self, outputs: Tensor) -> Tensor:
        return outputs

    def _prepare(self, embedded: Tensor, qkv_weight: Tensor) -> tuple[Tensor, Tensor]:
        for_embedding, _ = (self.fc.weight / self.scale).chunk(2, dim=1)
        return _product(embedded, for_embedding), qkv_weight

    def _fuse(self, features: Tensor) -> Tensor:
        return features

    def _project(self, states: Tensor, embedded: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        _, for_state = (self.fc.weight / self.scale).chunk(2, dim=1)
        x = _product(states, for_state) + embedded
        return _product(x, weight), x


class _Matrix(nn.Module):
    """y = x W^T in the dtype of x, with a float32 weight [out, in]."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, x: Tensor) -> Tensor:
        return _product(x, self.weight)


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return RMSNorm.apply(x, self.weight, self._eps)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))
