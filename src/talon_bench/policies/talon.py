"""TALON: a tree grown layer by layer under a node budget, gated by path probability (paper, Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from talon_bench.errors import UsageError
from talon_bench.policies.base import Draft
from talon_bench.tree import TokenTree, from_layers


@dataclass(frozen=True)
class Talon:
    """Keep a node when its path probability is at least `alpha` times the best of its layer, until `budget` is used.

    budget: nodes in the tree, root included (paper: N).
    root_top_k: nodes kept without gating in each of the first `init_layers` layers (paper: K).
    alpha: gate, in (0, 1] (paper: mu).
    init_layers: how many layers are plain top-K; the paper's method has 1 (k in its Figure 7).

    The pool of a layer is every token of the draft vocabulary after every parent. The best of a layer always passes its
    own gate, so the loop ends exactly when the budget is used, and draft passes equal the depth of the tree.
    """

    budget: int
    root_top_k: int = 10
    alpha: float = 0.03
    init_layers: int = 1

    @property
    def max_fed(self) -> int:
        return max(self.budget - 2, 0)

    @property
    def max_depth(self) -> int:
        return self.budget - 1

    @property
    def fed_widths(self) -> range:
        return range(1, self.max_fed + 1)

    def grow(self, draft: Draft) -> TokenTree:
        pool = draft.root_log_probs()[None]  # [parents, V], log path probability of every child
        first = 0  # node number of the newest layer's first node
        size = 1
        layers: list[tuple[Tensor, Tensor, Tensor]] = []
        while True:
            scores, children = self._select(pool.view(-1), self.budget - size, len(layers), draft.queued)
            parents = children // pool.shape[1]
            tokens = draft.to_target(children % pool.shape[1])
            layers.append((tokens, parents + first, scores))
            first, size = size, size + tokens.shape[0]
            if size >= self.budget:
                return from_layers(draft.root, layers, device=tokens.device)
            # Node 1 is the first node fed, so a parent's feeding number is its node number less one.
            pool = draft.expand(tokens, layers[-1][1] - 1).add_(scores[:, None])

    def _select(self, pool: Tensor, slots: int, layer: int, queued: bool) -> tuple[Tensor, Tensor]:
        """(scores, flat indices) of the layer's members, best first, at most `slots`."""
        if layer < self.init_layers:
            return pool.topk(min(self.root_top_k, slots, pool.shape[0]))
        if queued:
            return self._gate_queued(pool, slots)
        passing = (pool >= pool.max() + math.log(self.alpha)).nonzero().view(-1)
        scores, order = torch.sort(pool[passing], descending=True, stable=True)
        return scores[:slots], passing[order[:slots]]

    def _gate_queued(self, pool: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """The same members in the same order, found on the device: only their number comes to the host."""
        best = _stable_best(pool, min(slots, pool.shape[0]))
        scores = pool[best]
        members = int((scores >= scores[0] + math.log(self.alpha)).sum())
        if members == 0:
            raise UsageError(
                "the draft head's log-probabilities are not numbers; set target.dtype to bfloat16 or float32"
            )
        return scores[:members], best[:members]


def _stable_best(scores: Tensor, count: int) -> Tensor:
    """int64 [count]: where the largest of `scores` [n] lie, best first and the earlier of equal ones first.

    `scores` are float32 and at most 0. torch.topk settles ties as it likes, so it is given distinct keys instead: the bits
    of -score, which as integers are ordered like the numbers, above the position.
    """
    bits = (0.0 - scores).view(torch.int32)  # not -scores, which would tell 0.0 from -0.0
    keys = torch.arange(scores.shape[0], device=scores.device).add_(bits, alpha=1 << 32)
    return keys.topk(count, largest=False).values & 0xFFFFFFFF
