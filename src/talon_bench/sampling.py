"""From logits to the distribution that a method must reproduce: temperature, then top-k, then top-p."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from talon_bench.errors import UsageError


@dataclass(frozen=True)
class Sampler:
    """The target's decoding rule. Temperature 0 is greedy; top_k 0 and top_p 1 are off.

    The order of the filters is that of transformers' `generate`, so the law is the one users know from there.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UsageError(f"temperature is {self.temperature}; give 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}; give a value in (0, 1], 1 being off")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; give 0 (off) or more")
        if self.greedy and (self.top_p < 1 or self.top_k > 0):
            raise UsageError("top_p and top_k do nothing at temperature 0; set a temperature or leave them off")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """float64 [..., vocab] probabilities of the next token; `logits` are [..., vocab]. Not for greedy decoding."""
        logits = logits.double() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_p < 1:
            ascending, order = torch.sort(logits)
            tail = ascending.softmax(-1).cumsum(-1) <= 1 - self.top_p
            tail[..., -1].fill_(False)
            logits = logits.masked_fill(tail.scatter(-1, order, tail), float("-inf"))
        return logits.softmax(-1)


def uniform(generator: torch.Generator) -> float:
    """One float64 number in [0, 1)."""
    return float(torch.rand((), generator=generator, dtype=torch.float64, device=generator.device))


def invert(weights: Tensor, point: float) -> Tensor:
    """int64 [...]: the token at which the cumulated `weights` [..., vocab], scaled to 1, pass `point` in [0, 1)."""
    cumulative = weights.cumsum(-1)
    reached = torch.searchsorted(cumulative, point * cumulative[..., -1:], right=True)
    return reached[..., 0].clamp(max=weights.shape[-1] - 1)


def draw(probabilities: Tensor, generator: torch.Generator) -> int:
    """One token from [vocab] probabilities, by inversion with a single uniform draw."""
    return int(invert(probabilities, uniform(generator)))
