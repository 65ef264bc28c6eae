"""What turns gradients into steps: AdamW for all weights of a head, or Muon for the matrices between embedding and output."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon

from talon_bench.training.trainer_config import TrainerConfig

_OUTPUT = "lm_head"
"""Muon is for matrices that map states to states; rows of the output projection stand for tokens (Jordan et al., 2024)."""


class HeadOptimizer:
    """The optimizer that `config.optimizer` names; every weight of `trainee` belongs to one of its parts.

    Muon's updates have the root mean square of AdamW's ("match_rms_adamw", Liu et al., 2025), so one rate serves both.
    """

    def __init__(self, trainee: nn.Module, config: TrainerConfig) -> None:
        matrices, rest = [], []
        for name, weight in trainee.named_parameters():
            is_muons = config.optimizer == "muon" and weight.dim() == 2 and not name.startswith(_OUTPUT)
            (matrices if is_muons else rest).append(weight)
        self._parts: list[torch.optim.Optimizer] = [
            AdamW(rest, lr=config.lr, betas=tuple(config.betas), weight_decay=config.weight_decay, fused=True)
        ]
        if matrices:
            self._parts.append(
                Muon(matrices, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
            )

    def step(self, rate: float) -> None:
        """Take one step at this learning rate and forget the gradients."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """What a later start needs to go on; each part's."""
        return [part.state_dict() for part in self._parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go on from the `state` of an optimizer of the same kind."""
        for part, own in zip(self._parts, state, strict=True):
            part.load_state_dict(own)
