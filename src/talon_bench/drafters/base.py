"""The seam between the decode loop and whatever proposes trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from talon_bench.clock import PhaseClock
from talon_bench.transfer import to_device
from talon_bench.tree import TokenTree, root_only


class Drafter(Protocol):
    """Proposes one tree per round for one sequence at a time."""

    budget: int
    """Largest tree it proposes, root included."""

    feature_layers: tuple[int, ...] | None
    """Target layers whose entering states it wants at each accepted token; () = final states; None = no features."""

    passes: int
    """Draft passes since `start`."""

    def start(self, prompt: list[int], capacity: int) -> None:
        """Begin a sequence whose prompt and answer need at most `capacity` positions."""

    def observe(self, tokens: list[int], features: Tensor | None) -> None:
        """Take newly committed tokens (first the whole prompt) and their features [len(tokens), width]."""

    def propose(self, root: int, clock: PhaseClock) -> TokenTree:
        """The tree under the last emitted token, `root`; charges its passes to "draft" and the rest to "other"."""


class NoDrafter:
    """Proposes nothing: plain autoregressive decoding on the same loop and cache.

    eager: the target's passes are launched kernel by kernel, whatever the run's engine.
    """

    budget = 1
    feature_layers = None
    passes = 0

    def __init__(self, device: torch.device, eager: bool = False) -> None:
        self.eager = eager
        self._device = device
        self._root = root_only(0, device)

    def start(self, prompt: list[int], capacity: int) -> None:
        pass

    def observe(self, tokens: list[int], features: Tensor | None) -> None:
        pass

    def propose(self, root: int, clock: PhaseClock) -> TokenTree:
        return replace(self._root, tokens=to_device([root], self._device))
