"""Losslessness of sampling by exact enumeration: every policy, every accept or reject, several rounds.

A toy target and a toy draft head over a few tokens; the policies and the acceptance walk are the real ones.
Every way that the draws of a round can fall is followed with its exact probability, and the law of the next
tokens is compared with the target's own. Nothing is sampled, so there is no noise to hide in.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from talon_bench.policies import Eagle, Policy, Static, Talon, chain
from talon_bench.sampling import Sampler
from talon_bench.tree import TokenTree, root_only
from talon_bench.verify import walk
from toy_draft import ToyDraft

Context = tuple[int, ...]
Result = TypeVar("Result")

SAMPLERS = [
    Sampler(temperature, top_p, top_k)
    for temperature in (0.5, 1.0, 1.5)
    for top_p, top_k in ((1.0, 0), (0.8, 0), (1.0, 3), (0.85, 4))
]

POLICIES: dict[str, Policy] = {
    "chain of 1": chain(1),
    "chain of 3": chain(3),
    "wide": Static([[0], [1], [2], [3]]),
    "whole vocabulary": Static([[0], [1], [2], [3], [4], [0, 0], [4, 1]]),
    "bushy": Static([[0], [1], [0, 0], [0, 1], [1, 0], [1, 2], [0, 1, 0]]),
    "ranks with gaps": Static([[1], [3], [3, 2], [1, 0]]),
    "eagle": Eagle(budget=7, depth=2, top_k=3),
    "eagle, deep": Eagle(budget=6, depth=4, top_k=2),
    "talon": Talon(budget=8, root_top_k=2, alpha=0.1),
    "talon, gated root": Talon(budget=6, root_top_k=2, alpha=0.4, init_layers=0),
    "talon, narrow": Talon(budget=6, root_top_k=3, alpha=1.0),
    "talon, two plain layers": Talon(budget=9, root_top_k=3, alpha=0.03, init_layers=2),
}


class Draw:
    """A uniform draw on [0, 1), open until it is compared; `decide(chance)` settles the comparison.

    `draw * factor <= bound` holds with probability bound / factor, within [0, 1].
    """

    def __init__(self, decide: Callable[[float], bool], factor: float = 1.0) -> None:
        self._decide = decide
        self._factor = factor

    def __mul__(self, factor: float) -> Draw:
        return Draw(self._decide, self._factor * factor)

    __rmul__ = __mul__

    def __le__(self, bound: float) -> bool:
        return self._decide(1.0 if bound >= self._factor else max(bound, 0.0) / self._factor)

    __lt__ = __le__


def outcomes(run: Callable[[Callable[[], Draw]], Result]) -> Iterator[tuple[float, Result]]:
    """(probability, result) of each way that `run` can go, `run` being given the source of its draws."""
    scripts: list[list[bool]] = [[]]
    while scripts:
        script = scripts.pop()
        decided: list[bool] = []
        probability = 1.0

        def decide(chance: float, script: list[bool] = script, decided: list[bool] = decided) -> bool:
            nonlocal probability
            if len(decided) < len(script):
                answer = script[len(decided)]
            else:
                answer = chance > 0
                if 0 < chance < 1:
                    scripts.append([*decided, False])
            decided.append(answer)
            probability *= chance if answer else 1 - chance
            return answer

        result = run(lambda decide=decide: Draw(decide))
        yield probability, result


class Toy:
    """A target over `vocab` tokens and a draft head that is often right, over all or all but one of them."""

    def __init__(self, vocab: int, seed: int, hidden: int = 0) -> None:
        self.vocab = vocab
        # Draft ids in an order of their own; the last `hidden` target ids are unknown to the head.
        self.ids = np.random.default_rng([seed, 99]).permutation(vocab - hidden).tolist()
        self._seed = seed
        self._logits: dict[Context, Tensor] = {}
        self._grown: dict[tuple[Policy, Context], tuple[TokenTree, list[Context]]] = {}

    def logits(self, context: Context) -> Tensor:
        if context not in self._logits:
            rng = np.random.default_rng([self._seed, 1, *context])
            self._logits[context] = torch.tensor(rng.normal(0, 1.5, self.vocab))
        return self._logits[context]

    def tree(self, policy: Policy, context: Context) -> tuple[TokenTree, list[Context]]:
        """The policy's tree under the last token of `context`, and the drafted path to each node."""
        if (policy, context) not in self._grown:
            tree = policy.grow(ToyDraft(lambda path: self._draft_law(context, path), self.ids, context[-1]))
            paths: list[Context] = [()]
            for token, parent in zip(tree.tokens.tolist()[1:], tree.parents.tolist()[1:], strict=True):
                paths.append((*paths[parent], token))
            self._grown[policy, context] = tree, paths
        return self._grown[policy, context]

    def _draft_law(self, context: Context, path: Context) -> Tensor:
        noise = np.random.default_rng([self._seed, 2, *context, *path]).normal(0, 1, len(self.ids))
        return (self.logits(context + path)[self.ids] + torch.tensor(noise)).float().log_softmax(-1)


class NoTree:
    """Plain decoding as a policy: nothing is drafted."""

    budget = 1
    max_fed = 0

    def grow(self, draft: ToyDraft) -> TokenTree:
        return root_only(draft.root)


def law_of(policy: Policy, toy: Toy, sampler: Sampler, horizon: int) -> dict[Context, float]:
    """Probability of every continuation of `horizon` tokens, decoded round by round after token 0."""
    laws: dict[Context, Tensor] = {}

    def target(context: Context) -> Tensor:
        if context not in laws:
            laws[context] = sampler.probabilities(toy.logits(context))
        return laws[context]

    # What the rounds so far may have committed, root included, cut at the horizon.
    reached: list[dict[Context, float]] = [defaultdict(float) for _ in range(horizon + 2)]
    reached[1][(0,)] = 1.0
    for length in range(1, horizon + 1):
        for context, mass in reached[length].items():
            tree, paths = toy.tree(policy, context)

            def verify(
                uniform: Callable[[], Draw], tree=tree, paths=paths, context=context
            ) -> tuple[list[int], Tensor]:
                return walk(tree, lambda node: target(context + paths[node]), uniform)

            for chance, (path, rest) in outcomes(verify):
                emitted = context + paths[path[-1]]
                for token, p in enumerate(rest.tolist()):
                    longer = (*emitted, token)[: horizon + 1]
                    reached[len(longer)][longer] += mass * chance * p
    return {context[1:]: mass for context, mass in reached[-1].items()}


def exact_law(toy: Toy, sampler: Sampler, horizon: int) -> dict[Context, float]:
    """The target's own law of the next `horizon` tokens, by the chain rule."""
    law = {(): 1.0}
    for _ in range(horizon):
        law = {
            (*context, token): mass * p
            for context, mass in law.items()
            for token, p in enumerate(sampler.probabilities(toy.logits((0, *context))).tolist())
        }
    return law


def distance(law: dict[Context, float], other: dict[Context, float]) -> float:
    """Total variation distance."""
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in {*law, *other}) / 2


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("vocab", "hidden", "horizon"), [(5, 0, 4), (6, 1, 3), (8, 2, 3)])
def test_tree_sampling_has_the_targets_law(name: str, vocab: int, hidden: int, horizon: int) -> None:
    toy = Toy(vocab, seed=vocab, hidden=hidden)
    for sampler in SAMPLERS:
        law = law_of(POLICIES[name], toy, sampler, horizon)
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        assert distance(law, exact_law(toy, sampler, horizon)) < 1e-12, sampler


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_plain_decoding_has_the_targets_law(sampler: Sampler) -> None:
    toy = Toy(5, seed=1)
    assert distance(law_of(NoTree(), toy, sampler, 4), exact_law(toy, sampler, 4)) < 1e-12


@pytest.mark.parametrize("name", POLICIES)
def test_every_depth_of_the_trees_is_reached(name: str) -> None:
    """The comparison above would be empty if nothing, or everything, were accepted."""
    toy, sampler = Toy(5, seed=5), Sampler(1.0)
    tree, paths = toy.tree(POLICIES[name], (0,))
    mass = [0.0] * (int(tree.depths.max()) + 1)
    for chance, (path, _) in outcomes(
        lambda uniform: walk(tree, lambda node: sampler.probabilities(toy.logits((0, *paths[node]))), uniform)
    ):
        mass[len(path) - 1] += chance
    # Where the root's children are the whole vocabulary one of them is always accepted.
    never = 1 if name == "whole vocabulary" else 0
    assert mass[:never] == pytest.approx([0.0] * never, abs=1e-12)
    assert min(mass[never:]) > 1e-3


def test_outcomes_follow_every_draw() -> None:
    """The enumerator itself: three draws against 1/4, an impossible and a certain one leave two ways."""

    def run(uniform: Callable[[], Draw]) -> tuple[bool, ...]:
        return uniform() * 2.0 <= 0.5, uniform() <= 0.0, uniform() * 0.5 <= 0.5

    assert sorted(outcomes(run)) == [(0.25, (True, False, True)), (0.75, (False, False, True))]
    two_draws = outcomes(lambda uniform: (uniform() <= 0.25, uniform() <= 0.5))
    weights = {result: probability for probability, result in two_draws}
    assert weights == {
        (first, second): (0.25 if first else 0.75) * 0.5 for first, second in itertools.product([True, False], repeat=2)
    }
