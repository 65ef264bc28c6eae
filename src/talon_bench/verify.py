"""Acceptance: how far down the draft tree the target agrees, and the token it adds itself.

Drafted nodes are chosen deterministically by every policy here, so their proposal distribution is one-hot and both rules
are lossless (EAGLE paper, section 3; docs/methods.md proves the sampling rule).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from talon_bench.sampling import Sampler, invert, uniform
from talon_bench.tree import TokenTree


@dataclass(frozen=True)
class Acceptance:
    """What one verification keeps of a tree."""

    path: list[int]
    """Accepted nodes, root first."""
    tokens: list[int]
    """Their tokens."""
    next_token: int
    """The target's own token after the last of them."""
    finite: bool
    """Whether the logits after each of them have a finite maximum."""


def accept(
    tree: TokenTree, logits: Tensor, sampler: Sampler, generator: torch.Generator, at_once: bool = False
) -> Acceptance:
    """Walk the tree by the target's `logits` [nodes, vocab] under the decoding rule `sampler`.

    at_once: sample with a single transfer to the host, at the price of computing the distributions of nodes that the walk
    never comes to; the result is the same. Greedy acceptance always takes a single transfer.
    """
    if sampler.greedy:
        return accept_greedy(tree, logits)
    if at_once:
        return _sample_at_once(tree, logits, sampler, generator)
    point = uniform(generator)
    path, rest = walk(tree, lambda node: sampler.probabilities(logits[node]), lambda: uniform(generator))
    finite = bool(logits[path].amax(-1).isfinite().all())
    return Acceptance(path, tree.tokens[path].tolist(), int(invert(rest, point)), finite)


def accept_greedy(tree: TokenTree, logits: Tensor) -> Acceptance:
    """The longest path on which every token is the target's arg-max after its parent; `logits` are [nodes, vocab]."""
    best = logits.argmax(-1)
    finite = logits.gather(-1, best[:, None])[:, 0].isfinite()
    # One host transfer carries all that the walk needs.
    best, finite, tokens, parents = torch.stack([best, finite.long(), tree.tokens, tree.parents]).tolist()
    path = [0]
    for node in range(1, len(tokens)):
        if parents[node] == path[-1] and tokens[node] == best[path[-1]]:
            path.append(node)
    return Acceptance(path, [tokens[node] for node in path], best[path[-1]], all(finite[node] for node in path))


def walk(
    tree: TokenTree, probabilities: Callable[[int], Tensor], uniform: Callable[[], float]
) -> tuple[list[int], Tensor]:
    """Lossless sampling walk: (accepted path, distribution [vocab] of the token after it).

    At a node with distribution p, its children are tried in node order: child x is accepted with probability p(x) and
    otherwise removed from p, which is renormalised. One uniform draw per child tried. Where no child is accepted the next
    token follows what is left of p. `probabilities(node)` gives p, float64 [vocab].
    """
    tokens, parents = torch.stack([tree.tokens, tree.parents]).tolist()
    rest = torch.empty(0)

    def enter(node: int, children: list[int]) -> tuple[list[float], Callable[[], float]]:
        nonlocal rest
        rest = probabilities(node)
        drafted = [tokens[child] for child in children]

        def left() -> float:
            nonlocal rest
            rest = rest.clone()
            rest[drafted] = 0
            return float(rest.sum())

        return rest[drafted].tolist() if drafted else [], left

    path, mass = _descend(parents, enter, uniform)
    return path, rest if mass is None else rest / mass


def _sample_at_once(tree: TokenTree, logits: Tensor, sampler: Sampler, generator: torch.Generator) -> Acceptance:
    """`walk` and the draw after it, on numbers that one transfer brings to the host for all nodes.

    The token after the path is drawn first, for every node that the path could end at, from one uniform number: which node
    it is depends on the other draws alone.
    """
    point = uniform(generator)
    laws = sampler.probabilities(logits)
    tokens, parents = tree.tokens[1:], tree.parents[1:]
    chances = laws[parents, tokens]
    laws.index_put_((parents, tokens), laws.new_zeros(()))
    columns = [F.pad(chances, (1, 0)), laws.sum(-1), invert(laws, point), logits.amax(-1).isfinite(), tree.tokens]
    columns = torch.stack([column.double() for column in (*columns, tree.parents)])
    # Ids are exact in float64.
    chances, left, drawn, finite, tokens, parents = columns.tolist()

    def enter(node: int, children: list[int]) -> tuple[list[float], Callable[[], float]]:
        return [chances[child] for child in children], lambda: left[node]

    path, _ = _descend(parents, enter, lambda: uniform(generator))
    return Acceptance(
        path, [int(tokens[node]) for node in path], int(drawn[path[-1]]), all(finite[node] for node in path)
    )


def _descend(
    parents: list[float],
    enter: Callable[[int, list[int]], tuple[list[float], Callable[[], float]]],
    uniform: Callable[[], float],
) -> tuple[list[int], float | None]:
    """(accepted path, mass that the children of its last node leave; None where it has none).

    `enter(node, children)` gives the probability of each child and a function for the mass that they leave.
    """
    path = [0]
    while True:
        here = path[-1]
        children = [node for node in range(here + 1, len(parents)) if parents[node] == here]
        chances, left = enter(here, children)
        if not children:
            return path, None
        accepted = _try_in_turn(chances, uniform)
        if accepted is None:
            mass = left()
            if mass > 0:
                return path, mass
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
