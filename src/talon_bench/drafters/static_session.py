"""Drafting on the static engine: the passes of `static_passes` in the place of a session's own."""

from __future__ import annotations

from torch import Tensor

from talon_bench.drafters.head import DraftHead
from talon_bench.drafters.session import HeadDrafter
from talon_bench.policies import Policy


class StaticHeadDrafter(HeadDrafter):
    """A `HeadDrafter` whose passes have few shapes and, on a GPU, are replayed from recordings.

    Trees are the same. A prompt, which is long and of any length, is caught up with as on the eager engine.
    """

    def __init__(self, head: DraftHead, policy: Policy) -> None:
        super().__init__(head, policy)
        self.queued = True
        self._static = head.static_passes

    def _reserve(self, prompt_tokens: int, capacity: int) -> None:
        self._static.reserve(capacity, self._policy)
        self._static.prepare(self._policy, prompt_tokens, capacity)

    def _catch_up(self, tokens: list[int]) -> Tensor:
        if not self._static.fits(len(tokens)):
            log_probs = super()._catch_up(tokens)
            self._static.begin(self._context + len(tokens), self._outputs[-1:])
            return log_probs
        self._clock.lap("other")
        log_probs = self._static.catch_up(self._context, tokens, self._features)
        self._clock.lap("draft")
        return log_probs

    def _feed(self, tokens: Tensor, parents: Tensor) -> Tensor:
        self._clock.lap("other")
        log_probs = self._static.expand(tokens, parents, self._layer, self._fed)
        self._clock.lap("draft")
        return log_probs
