"""EAGLE-2 and EAGLE-3: a dynamic top-K tree of fixed depth, re-ranked at the end (EAGLE-2 paper, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from talon_bench.policies.base import Draft
from talon_bench.tree import TokenTree


@dataclass(frozen=True)
class Eagle:
    """Expand the `top_k` best nodes of each layer, then keep the best `budget` - 1 of all nodes drafted.

    budget: nodes in the tree, root included (EAGLE's `total_token`).
    depth: layers of the tree, equal to the draft passes of a round (EAGLE's flag `depth`, plus 1).
    top_k: children drafted per node, and nodes expanded per layer.
    """

    budget: int
    depth: int
    top_k: int = 10

    @property
    def max_fed(self) -> int:
        return (self.depth - 1) * self.top_k

    @property
    def max_depth(self) -> int:
        return self.depth

    @property
    def fed_widths(self) -> tuple[int, ...]:
        return (self.top_k,) if self.depth > 1 else ()

    def grow(self, draft: Draft) -> TokenTree:
        log_probs = draft.root_log_probs()
        width = min(self.top_k, log_probs.shape[0])
        beam_scores, ids = log_probs.topk(width)
        beam_tokens = draft.to_target(ids)
        beam_candidates = torch.arange(width, device=ids.device)  # the beam's numbers among all candidates
        fed_parents = torch.full_like(ids, -1)
        tokens, scores, parents = [beam_tokens], [beam_scores], [fed_parents]
        for layer in range(1, self.depth):
            log_probs = draft.expand(beam_tokens, fed_parents)
            child_log_probs, ids = log_probs.topk(width, dim=-1)  # [beam, width]
            layer_scores = (beam_scores[:, None] + child_log_probs).view(-1)
            layer_tokens = draft.to_target(ids.view(-1))
            tokens.append(layer_tokens)
            scores.append(layer_scores)
            parents.append(beam_candidates[:, None].expand(-1, width).reshape(-1))
            if layer < self.depth - 1:
                beam_scores, best = layer_scores.topk(width)
                beam_tokens = layer_tokens[best]
                beam_candidates = width + (layer - 1) * width * width + best
                fed_parents = (layer - 1) * width + best // width
        candidates = (torch.cat(tokens), torch.cat(parents), torch.cat(scores))
        return _best_subtree(draft.root, self.budget - 1, self.depth, width, candidates)


def _best_subtree(root: int, keep: int, max_depth: int, width: int, candidates: tuple[Tensor, ...]) -> TokenTree:
    """The `keep` best candidates, in candidate order, under the root.

    `candidates` are (tokens, parents, scores), each [candidates], `width` of them in the first layer and its square in each
    further one; a child of the root has parent -1.

    A child scores no higher than its parent and comes after it, so a stable sort never keeps a child without its parent,
    even where scores tie (the official code can: see docs/methods.md).
    """
    tokens, parents, scores = candidates
    kept = torch.sort(scores, descending=True, stable=True).indices[:keep].sort().values
    # Candidate c becomes node (rank of c in `kept`) + 1, and the root's -1 becomes 0.
    node_parents = torch.searchsorted(kept, parents[kept], right=True)
    depths = (kept - width).div(width * width, rounding_mode="floor") + 2

    def with_root(value: float, column: Tensor) -> Tensor:
        return torch.cat([column.new_full((1,), value), column])

    return TokenTree(
        tokens=with_root(root, tokens[kept]),
        parents=with_root(-1, node_parents),
        depths=with_root(0, depths),
        scores=with_root(0.0, scores[kept]),
        num_layers=max_depth,
    )
