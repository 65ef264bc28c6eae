"""Acceptance: how far down the draft tree the target agrees, and the token it adds itself.

Drafted nodes are chosen deterministically by every policy here, so their proposal distribution is one-hot and both rules
are lossless (EAGLE paper, section 3; docs/methods.md proves the sampling rule).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from talon_bench.sampling import Sampler, draw
from talon_bench.tree import TokenTree


@dataclass(frozen=True)
class Acceptance:
    """`path`: accepted nodes, root first; `next_token`: the target's own token after the last of them."""

    path: list[int]
    next_token: int


def accept(tree: TokenTree, logits: Tensor, sampler: Sampler, generator: torch.Generator) -> Acceptance:
    """Walk the tree by the target's `logits` [nodes, vocab] under the decoding rule `sampler`."""
    if sampler.greedy:
        return accept_greedy(tree, logits)

    def uniform() -> float:
        return float(torch.rand((), generator=generator, dtype=torch.float64, device=generator.device))

    path, rest = walk(tree, lambda node: sampler.probabilities(logits[node]), uniform)
    return Acceptance(path, draw(rest, generator))


def accept_greedy(tree: TokenTree, logits: Tensor) -> Acceptance:
    """The longest path on which every token is the target's arg-max after its parent; `logits` are [nodes, vocab]."""
    # One host transfer carries all that the walk needs.
    best, tokens, parents = torch.stack([logits.argmax(-1), tree.tokens, tree.parents]).tolist()
    path = [0]
    for node in range(1, len(tokens)):
        if parents[node] == path[-1] and tokens[node] == best[path[-1]]:
            path.append(node)
    return Acceptance(path, best[path[-1]])


def walk(
    tree: TokenTree, probabilities: Callable[[int], Tensor], uniform: Callable[[], float]
) -> tuple[list[int], Tensor]:
    """Lossless sampling walk: (accepted path, distribution [vocab] of the token after it).

    At a node with distribution p, its children are tried in node order: child x is accepted with probability p(x) and
    otherwise removed from p, which is renormalised. One uniform draw per child tried. Where no child is accepted the next
    token follows what is left of p. `probabilities(node)` gives p, float64 [vocab].
    """
    tokens, parents = torch.stack([tree.tokens, tree.parents]).tolist()
    path = [0]
    while True:
        here = path[-1]
        children = [node for node in range(here + 1, len(tokens)) if parents[node] == here]
        p = probabilities(here)
        if not children:
            return path, p
        drafted = [tokens[child] for child in children]
        chances = p[drafted].tolist()
        accepted = _try_in_turn(chances, uniform)
        if accepted is None:
            rest = p.clone()
            rest[drafted] = 0
            mass = rest.sum()
            if mass > 0:
                return path, rest / mass
            # Rounding alone can reject children that hold all the mass; the likeliest of them is then the draw.
            accepted = max(range(len(chances)), key=chances.__getitem__)
        path.append(children[accepted])


def _try_in_turn(chances: list[float], uniform: Callable[[], float]) -> int | None:
    """Index of the first accepted child, or None; each is tried against its share of the mass not yet rejected."""
    left = 1.0
    for index, chance in enumerate(chances):
        if uniform() * left <= chance and chance > 0:
            return index
        left -= chance
    return None
