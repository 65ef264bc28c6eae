"""The head of EAGLE-3: features of three target layers, own norm and lm_head (EAGLE-3 paper, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.head import DraftHead
from talon_bench.target import Target


class Eagle3Head(DraftHead):
    """h = fc(features), or an earlier output; attention reads [norm(embedding), norm(h)] and adds to h."""

    def __init__(self, loaded: LoadedHead, target: Target) -> None:
        super().__init__(loaded, target)
        self._lm_head = self._linear("lm_head")

    def fuse(self, features: Tensor) -> Tensor:
        if self.spec.fc_norm:
            parts = features.chunk(len(self.spec.feature_layers), dim=-1)
            features = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], dim=-1)
        if self.spec.norm_before_fc:
            features = self._norm(features, "input_norm")
        return self._fc(features)

    def forward(self, *args: object) -> Tensor:
        outputs = super().forward(*args)
        return self._norm(outputs, "norm") if self.spec.norm_output else outputs

    def logits(self, outputs: Tensor) -> Tensor:
        return self._lm_head(outputs if self.spec.norm_output else self._norm(outputs, "norm"))

    def _layer_input(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._norm(states, "layer.hidden_norm")
        x = torch.cat([self._norm(embedded, "layer.input_layernorm"), normed], dim=-1)
        return x, normed if self.spec.norm_before_residual else states
