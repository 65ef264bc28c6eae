"""Prompt lookup: drafts the continuation of the last n-gram's latest earlier occurrence. No head, no draft pass."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.clock import PhaseClock
from talon_bench.transfer import to_device
from talon_bench.tree import TokenTree, from_layers, root_only


class PromptLookup:
    """A chain of up to `length` tokens that followed the longest matching n-gram (`max_ngram` down to 1) in the context.

    The baseline that costs nothing (Saxena, "Prompt Lookup Decoding", 2023).
    """

    feature_layers = None
    passes = 0

    def __init__(self, length: int, max_ngram: int, device: object) -> None:
        self.budget = length + 1
        self._length = length
        self._max_ngram = max_ngram
        self._device = device
        self._context: list[int] = []
        # For each n-gram, where the token after its latest occurrence stands.
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def start(self, prompt: list[int], capacity: int) -> None:
        self._context, self._ends, self._indexed = [], {}, 0

    def observe(self, tokens: list[int], features: Tensor | None) -> None:
        self._context += tokens

    def propose(self, root: int, clock: PhaseClock) -> TokenTree:
        drafted = self._continuation([*self._context, root])
        if not drafted:
            return root_only(root, self._device)
        tokens, parents = to_device([*drafted, *range(len(drafted))], self._device).view(2, -1, 1)
        layers = list(zip(tokens, parents, torch.zeros(len(drafted), 1, device=self._device), strict=True))
        return from_layers(root, layers, device=self._device)

    def _continuation(self, context: list[int]) -> list[int]:
        """What followed the last earlier occurrence of the context's final n-gram, longest n first."""
        # n-grams that end before the last token; the last one's own end must not find itself.
        for end in range(self._indexed, len(context) - 1):
            for n in range(1, min(self._max_ngram, end + 1) + 1):
                self._ends[tuple(context[end + 1 - n : end + 1])] = end + 1
        self._indexed = len(context) - 1
        for n in range(min(self._max_ngram, len(context) - 1), 0, -1):
            follow = self._ends.get(tuple(context[-n:]))
            if follow is not None:
                return context[follow : follow + self._length]
        return []
