"""The head of EAGLE-3: features of three target layers, own norm and lm_head (EAGLE-3 paper, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.drafters.head import DraftHead


class Eagle3Head(DraftHead):
    """h = fc(features), or an earlier output; attention reads [norm(embedding), norm(h)] and adds to h."""

    def fuse(self, features: Tensor) -> Tensor:
        if self.spec.fc_norm:
            parts = features.chunk(len(self.spec.feature_layers), dim=-1)
            features = torch.cat([self._norms[f"fc_norm.{i}"](part) for i, part in enumerate(parts)], dim=-1)
        if self.spec.norm_before_fc:
            features = self._norms["input_norm"](features)
        return self._fc(features)

    def forward(self, *args: object) -> Tensor:
        outputs = super().forward(*args)
        return self._norms["norm"](outputs) if self.spec.norm_output else outputs

    def logits(self, outputs: Tensor) -> Tensor:
        return self._lm_head(outputs if self.spec.norm_output else self._norms["norm"](outputs))

    def _layer_input(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._norms["layer.hidden_norm"](states)
        x = torch.cat([self._norms["layer.input_layernorm"](embedded), normed], dim=-1)
        return x, normed if self.spec.norm_before_residual else states
