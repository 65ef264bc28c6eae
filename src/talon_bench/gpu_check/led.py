"""A target that agrees with its draft: the way to time rounds that accept tokens where no trained head is at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from talon_bench.target import Target

CERTAIN = 1e4
"""A logit above all that a network gives."""


@dataclass
class LedTarget(Target):
    """A `Target` whose verification accepts the path to the first node at depth `lead`, or to the deepest node of the tree.

    Some ten small kernels behind the pass, none of which waits, put those tokens' logits above all others. Passes over one
    node, hence AR, are left alone. Its answers mean nothing.
    """

    lead: int = 0
    """0: the target's own logits."""

    @torch.inference_mode()
    def verify(self, tokens: Tensor, depths: Tensor, visible: Tensor | None, eager: bool = False) -> Tensor:
        logits = super().verify(tokens, depths, visible, eager)
        if self.lead and visible is not None:
            numbers = torch.arange(tokens.shape[0], device=tokens.device)
            parents = (visible.tril(-1) * numbers).amax(-1)[1:]
            last = (depths < self.lead).sum(0, keepdim=True).clamp(max=tokens.shape[0] - 1)
            on_path = visible.index_select(0, last)[0, 1:]
            there = (parents, tokens[1:])
            logits.index_put_(there, logits[there].masked_fill(on_path, CERTAIN))
        return logits
