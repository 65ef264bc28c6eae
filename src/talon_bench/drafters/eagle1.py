"""The head of EAGLE-1 and EAGLE-2: predicts the target's last hidden state and reads tokens off with the target's lm_head."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.drafters.head import DraftHead


class Eagle1Head(DraftHead):
    """x = fc([embedding of token i + 1, feature i]), one decoder layer without input norm (EAGLE paper, section 3)."""

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def logits(self, outputs: Tensor) -> Tensor:
        return self._target.project(outputs)

    def _layer_input(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        x = self._fc(torch.cat([embedded, states], dim=-1))
        return x, x
