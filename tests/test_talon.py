"""TALON against its invariants and against Algorithm 2 written out over the whole vocabulary."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from talon_bench.errors import UsageError
from talon_bench.policies import Talon
from talon_bench.policies.talon import _stable_best
from talon_bench.tree import TokenTree
from toy_draft import (
    GRID,
    KINDS,
    TIED_KINDS,
    Language,
    Path,
    ToyDraft,
    bounded,
    languages,
    layers_of,
    log_prob_of,
    paths_of,
)

# Half-way between two grid points, so that no path probability lies on a gate.
alphas = st.one_of(st.just(1.0), st.integers(0, 8 * 2**15).map(lambda steps: math.exp(-(steps + 0.5) * GRID)))


@st.composite
def policies(draw: st.DrawFn) -> Talon:
    budget = draw(st.integers(2, 64))
    root_top_k = draw(st.integers(1, min(budget - 1, 12)))
    return Talon(budget, root_top_k, draw(alphas), draw(st.integers(0, 3)))


def grow(policy: Talon, language: Language) -> tuple[TokenTree, ToyDraft]:
    draft = language.draft()
    return policy.grow(draft), draft


any_language = languages(KINDS + TIED_KINDS)


@given(policies(), any_language)
@bounded(150)
def test_budget_is_used_exactly_by_one_connected_tree(policy: Talon, language: Language) -> None:
    tree, draft = grow(policy, language)
    paths = paths_of(tree)
    assert tree.size == policy.budget == len(paths)
    assert tree.scores.tolist()[1:] == [log_prob_of(language, path) for path in paths[1:]]
    assert draft.passes == tree.num_layers == max(map(len, paths))


@given(policies(), any_language)
@bounded(100)
def test_every_layer_but_the_last_is_fed_in_node_order(policy: Talon, language: Language) -> None:
    tree, draft = grow(policy, language)
    inner = [path for path in paths_of(tree)[1:] if len(path) < tree.num_layers]
    assert draft.fed == inner
    assert len(inner) <= policy.max_fed
    assert tree.num_layers <= policy.max_depth
    assert all(len(layer) in policy.fed_widths for layer in draft.layers)


@given(policies(), any_language)
@bounded(200)
def test_the_tree_is_the_same_behind_a_queue(policy: Talon, language: Language) -> None:
    """Same members in the same order, ties included, although only their number is read."""
    tree, draft = grow(policy, language)
    queued = language.draft(queued=True)
    again = policy.grow(queued)
    for column in ("tokens", "parents", "depths", "scores"):
        assert torch.equal(getattr(again, column), getattr(tree, column)), column
    assert queued.layers == draft.layers


@given(st.lists(st.sampled_from([0.0, -0.0, -1e-40, -0.25, -0.5, -3.0, -1e30, -math.inf]), min_size=1), st.data())
@bounded(100)
def test_stable_best_is_a_stable_sort_cut_short(scores: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    expected = sorted(range(len(scores)), key=lambda i: -scores[i])[:count]
    assert _stable_best(torch.tensor(scores), count).tolist() == expected


def test_a_head_that_is_not_a_number_is_refused_behind_a_queue() -> None:
    draft = ToyDraft(lambda path: by_hand(path) * (math.nan if path else 1), [10, 20, 30, 40], queued=True)
    with pytest.raises(UsageError, match="log-probabilities are not numbers"):
        Talon(budget=8, root_top_k=2).grow(draft)


@given(any_language, st.integers(2, 64), st.integers(1, 12), alphas)
@bounded(100)
def test_root_layer_is_top_k_whatever_the_probabilities(
    language: Language, budget: int, root_top_k: int, alpha: float
) -> None:
    tree, _ = grow(Talon(budget, root_top_k, alpha), language)
    best = sorted((log_prob for _, log_prob in language.children(())), reverse=True)
    assert list(layers_of(tree)[0].values()) == best[: min(root_top_k, budget - 1)]


@given(policies(), any_language)
@bounded(200)
def test_layers_keep_what_passes_and_the_best_on_overflow(policy: Talon, language: Language) -> None:
    """Each layer is checked given the one above: with ties this holds whichever of them were kept."""
    tree, _ = grow(policy, language)
    above: dict[Path, float] = {(): 0.0}
    slots = policy.budget - 1
    for depth, layer in enumerate(layers_of(tree)):
        pool = [score + log_prob for path, score in above.items() for _, log_prob in language.children(path)]
        pool.sort(reverse=True)
        if depth < policy.init_layers:
            expected = pool[: policy.root_top_k]
        else:
            expected = [score for score in pool if score >= pool[0] + math.log(policy.alpha)]
        assert list(layer.values()) == expected[:slots], "not the best, best first"
        slots -= len(layer)
        above = layer


@given(languages(KINDS), st.integers(2, 64), st.integers(1, 12))
@bounded(80)
def test_alpha_1_is_a_chain_after_the_root_layer(language: Language, budget: int, root_top_k: int) -> None:
    layers = layers_of(grow(Talon(budget, root_top_k, 1.0), language)[0])
    for above, layer in itertools.pairwise(layers):
        ties = [path for path, score in _children(language, above).items() if score == max(layer.values())]
        assume(len(ties) == 1)
        assert len(layer) == 1


@given(policies(), languages(KINDS))
@example(Talon(60), Language("mixed", 200, 1))
@example(Talon(60), Language("peaked", 200, 2))
@example(Talon(60), Language("flat", 200, 3))
@bounded(300)
def test_equals_algorithm_2_over_the_full_vocabulary(policy: Talon, language: Language) -> None:
    expected = algorithm_2(language, policy.budget, policy.root_top_k, policy.alpha, policy.init_layers)
    tree, draft = grow(policy, language)
    assert [list(layer) for layer in layers_of(tree)] == expected
    assert draft.passes == len(expected)


def algorithm_2(language: Language, budget: int, root_top_k: int, alpha: float, init_layers: int) -> list[list[Path]]:
    """Algorithm 2 of the paper in Python floats, with probabilities where the policy has their logarithms."""
    layers: list[list[Path]] = []
    above: list[tuple[float, Path]] = [(1.0, ())]
    size = 1
    while size < budget:
        pool = [(p * math.exp(log_prob), child) for p, path in above for child, log_prob in language.children(path)]
        pool.sort(reverse=True)
        plain = len(layers) < init_layers
        kept = pool[:root_top_k] if plain else [node for node in pool if node[0] >= alpha * pool[0][0]]
        kept = kept[: budget - size]
        ranked = [p for p, _ in pool[: len(kept) + 1]]
        # The paper says nothing about ties: which of two equal nodes is kept is not compared here.
        assume(all(better > worse * (1 + GRID / 2) for better, worse in itertools.pairwise(ranked)))
        # Below this, float32 resolves the gate no finer than the grid.
        assume(alpha == 1 or pool[0][0] > math.exp(-120))
        layers.append([path for _, path in kept])
        above = kept
        size += len(kept)
    return layers


def _children(language: Language, above: dict[Path, float]) -> dict[Path, float]:
    return {child: score + log_prob for path, score in above.items() for child, log_prob in language.children(path)}


def by_hand(path: Path) -> torch.Tensor:
    """Four tokens a, b, c, d, with target ids 10, 20, 30, 40."""
    table = {
        (): [0.5, 0.1, 0.3, 0.1],
        (10,): [0.1, 0.6, 0.2, 0.1],
        (30,): [0.8, 0.1, 0.06, 0.04],
    }
    return torch.tensor(table.get(path, [0.05, 0.85, 0.06, 0.04])).log()


def test_golden_tree() -> None:
    """budget 8, K 2, alpha 0.3, worked by hand.

    Layer 1: a 0.5, c 0.3. Layer 2: gate 0.09: ab 0.30, ca 0.24, ac 0.10 pass (aa, ad are 0.05, cb 0.03).
    Layer 3: gate 0.0765: abb 0.255, cab 0.204, acb 0.085 pass; two slots are left: abb, cab.
    """
    draft = ToyDraft(by_hand, [10, 20, 30, 40])
    tree = Talon(budget=8, root_top_k=2, alpha=0.3).grow(draft)
    assert tree.tokens.tolist()[1:] == [10, 30, 20, 10, 30, 20, 20]
    assert tree.parents.tolist() == [-1, 0, 0, 1, 2, 1, 3, 4]
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2, 3, 3]
    assert tree.scores.exp().tolist() == pytest.approx([1, 0.5, 0.3, 0.3, 0.24, 0.1, 0.255, 0.204], abs=1e-6)
    assert draft.passes == tree.num_layers == 3
    assert draft.layers == [[(10,), (30,)], [(10, 20), (30, 10), (10, 30)]]


@pytest.mark.parametrize(
    ("init_layers", "widths"),
    [
        # Gate 0.075 at the root: a, c, b, d all pass. Then ab 0.30, ca 0.24, ac 0.10 fill the budget.
        (0, [4, 3]),
        # a, c. Gate 0.045: ab, ca, ac and aa, ad at 0.05.
        (1, [2, 5]),
        # a, c. ab, ca. Gate 0.03825: abb 0.255, cab 0.204 (the next is aba, 0.015). One slot is left.
        (2, [2, 2, 2, 1]),
        # a, c. ab, ca. abb, cab. abbb.
        (3, [2, 2, 2, 1]),
    ],
)
def test_init_layers_are_plain_top_k(init_layers: int, widths: list[int]) -> None:
    draft = ToyDraft(by_hand, [10, 20, 30, 40])
    tree = Talon(budget=8, root_top_k=2, alpha=0.15, init_layers=init_layers).grow(draft)
    assert tree.widths() == widths


def test_fewest_and_most_passes_of_the_papers_setting() -> None:
    """budget 60, K 10: two passes where all is equally likely, one node a layer where one token always is."""
    flat, draft = grow(Talon(60), Language("equal", 200, 0))
    assert (flat.widths(), draft.passes) == ([10, 49], 2)
    certain, draft = grow(Talon(60), Language("saturated", 200, 0))
    assert (certain.widths(), draft.passes) == ([10, *[1] * 49], 50)
