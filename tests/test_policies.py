"""EAGLE's dynamic tree and static trees against their algorithms written out over lists."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pathlib

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_bench.errors import UsageError
from talon_bench.policies import Eagle, Static, chain
from toy_draft import (
    KINDS,
    ROOT,
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

SHARED = pathlib.Path(os.environ.get("TALON_BENCH_SHARED", pathlib.Path(__file__).parents[1].parent / "shared"))

EAGLE1_TREE = [
    *([0], [1], [2], [3]),
    *([0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0]),
    *([0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 2, 0], [0, 2, 1], [1, 0, 0]),
    *([0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2]),
    *([0, 0, 0, 0, 0], [0, 0, 0, 0, 1]),
]

Scored = tuple[float, Path]

eagles = st.builds(Eagle, st.integers(2, 64), st.integers(1, 8), st.integers(1, 12))


def best(pool: list[Scored], count: int) -> list[Scored]:
    """The `count` best, best first; drops examples where a tie decides which they are or their order."""
    ranked = sorted(pool, key=lambda scored: -scored[0])
    scores = [score for score, _ in ranked[: count + 1]]
    assume(all(better > worse for better, worse in itertools.pairwise(scores)))
    return ranked[:count]


def children(language: Language, parent: Scored, count: int) -> list[Scored]:
    score, path = parent
    return best([(score + log_prob, child) for child, log_prob in language.children(path)], count)


def eagle_tree(language: Language, budget: int, depth: int, top_k: int) -> tuple[list[Scored], list[list[Path]]]:
    """EAGLE-2 (paper, sections 4.1 and 4.2): the nodes in candidate order, and the layers fed."""
    beam = children(language, (0.0, ()), top_k)
    candidates = list(beam)
    fed = []
    for _ in range(depth - 1):
        fed.append([path for _, path in beam])
        level = [child for parent in beam for child in children(language, parent, top_k)]
        candidates += level
        beam = best(level, min(top_k, language.vocab))
    kept = {path for _, path in best(candidates, budget - 1)}
    return [node for node in candidates if node[1] in kept], fed


@given(eagles, languages(KINDS, largest=60))
@bounded(200)
def test_eagle_equals_the_algorithm_in_candidate_order(policy: Eagle, language: Language) -> None:
    expected, fed = eagle_tree(language, policy.budget, policy.depth, policy.top_k)
    draft = language.draft()
    tree = policy.grow(draft)
    assert list(zip(tree.scores.tolist()[1:], paths_of(tree)[1:], strict=True)) == expected
    assert draft.layers == fed
    assert draft.passes == policy.depth
    assert len(draft.fed) <= policy.max_fed
    assert tree.num_layers == policy.max_depth
    assert max(map(len, draft.layers), default=0) <= max(policy.fed_widths, default=0)


@given(eagles, languages(TIED_KINDS, largest=40))
@bounded(200)
def test_eagle_keeps_every_parent_where_scores_tie(policy: Eagle, language: Language) -> None:
    """Whichever of equal nodes the beam took, the best of what was drafted are kept, the shallower first."""
    draft = language.draft()
    tree = policy.grow(draft)
    paths = paths_of(tree)
    assert tree.scores.tolist()[1:] == [log_prob_of(language, path) for path in paths[1:]]

    width = min(policy.top_k, language.vocab)
    drafted: list[tuple[float, int]] = []
    for depth, beam in enumerate([[()], *draft.layers]):
        level = []
        for path in beam:
            scores = [log_prob_of(language, path) + log_prob for _, log_prob in language.children(path)]
            level += sorted(scores, reverse=True)[:width]
        if depth < len(draft.layers):
            fed = [log_prob_of(language, path) for path in draft.layers[depth]]
            assert fed == sorted(level, reverse=True)[:width], "the beam is not the best of its layer"
        drafted += [(score, depth + 1) for score in level]
    drafted.sort(key=lambda node: (-node[0], node[1]))
    kept = [(score, len(path)) for path, score in zip(paths[1:], tree.scores.tolist()[1:], strict=True)]
    assert sorted(kept, key=lambda node: (-node[0], node[1])) == drafted[: policy.budget - 1]
    assert tree.size == min(policy.budget, 1 + len(drafted))
    assert draft.passes == policy.depth


def test_eagle_keeps_a_saturated_chain() -> None:
    """log p = 0 all along the best path: every tie is between a parent and its child."""
    language = Language("saturated", 30, seed=4)
    tree = Eagle(budget=5, depth=8, top_k=10).grow(language.draft())
    assert tree.scores.tolist() == [0.0] * 5
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]


def by_hand(path: Path) -> torch.Tensor:
    """Three tokens a, b, c, with target ids 10, 20, 30."""
    table = {(): [0.5, 0.1, 0.4], (10,): [0.3, 0.6, 0.1], (30,): [0.05, 0.05, 0.9], (30, 30): [0.1, 0.2, 0.7]}
    return torch.tensor(table.get(path, [0.2, 0.5, 0.3])).log()


def test_eagle_golden_tree() -> None:
    """budget 6, depth 3, K 2, worked by hand.

    Layer 1: a 0.5, c 0.4. Layer 2: ab 0.30, aa 0.15; cc 0.36, c(a or b) 0.02; the beam is cc, ab.
    Layer 3: ccc 0.252, ccb 0.072; abb 0.15, abc 0.09. The five best: a, c, cc, ab, ccc.
    """
    draft = ToyDraft(by_hand, [10, 20, 30])
    tree = Eagle(budget=6, depth=3, top_k=2).grow(draft)
    assert tree.tokens.tolist() == [ROOT, 10, 30, 20, 30, 30]
    assert tree.parents.tolist() == [-1, 0, 0, 1, 2, 4]
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 3]
    assert tree.scores.exp().tolist() == pytest.approx([1, 0.5, 0.4, 0.3, 0.36, 0.252], abs=1e-6)
    assert draft.layers == [[(10,), (30,)], [(30, 30), (10, 20)]]
    assert draft.passes == 3


def test_eagle_keeps_less_than_its_budget_where_less_was_drafted() -> None:
    tree = Eagle(budget=60, depth=2, top_k=3).grow(Language("flat", 20, 0).draft())
    assert tree.size == 1 + 3 + 9
    assert tree.widths() == [3, 9]


def test_eagle_without_drafted_nodes_is_the_root() -> None:
    assert paths_of(Eagle(budget=1, depth=2, top_k=3).grow(Language("flat", 20, 0).draft())) == [()]


@st.composite
def shapes(draw: st.DrawFn) -> list[list[int]]:
    """Prefix-closed lists of rank paths in any order, ranks with gaps."""
    paths: list[Path] = [()]
    for _ in range(draw(st.integers(1, 30))):
        path = (*paths[draw(st.integers(0, len(paths) - 1))], draw(st.integers(0, 5)))
        if path not in paths and len(path) < 8:
            paths.append(path)
    return [list(path) for path in draw(st.permutations(paths[1:]))]


@given(shapes(), languages(KINDS, largest=40))
@bounded(150)
def test_static_shape_is_the_choices(choices: list[list[int]], language: Language) -> None:
    assume(language.vocab >= 6)
    ordered = sorted((tuple(choice) for choice in choices), key=lambda choice: (len(choice), choice))
    scored: dict[Path, Scored] = {(): (0.0, ())}
    for choice in ordered:
        scored[choice] = children(language, scored[choice[:-1]], 6)[choice[-1]]
    policy, draft = Static(choices), language.draft()
    tree = policy.grow(draft)
    grown = list(zip(tree.scores.tolist()[1:], paths_of(tree)[1:], strict=True))
    assert grown == [scored[choice] for choice in ordered]
    assert tree.size == policy.budget == len(choices) + 1
    inner = {choice[:-1] for choice in ordered} - {()}
    assert draft.fed == [scored[choice][1] for choice in ordered if choice in inner]
    assert len(draft.fed) == policy.max_fed
    assert tuple(map(len, draft.layers)) == policy.fed_widths
    assert tree.num_layers == policy.max_depth
    assert draft.passes == tree.num_layers == max(map(len, choices))


def test_static_grows_round_after_round() -> None:
    policy = Static(EAGLE1_TREE)
    for seed in range(3):
        language = Language("mixed", 30, seed)
        first, again = policy.grow(language.draft()), policy.grow(language.draft())
        assert paths_of(first) == paths_of(again)


def test_eagle1_tree_takes_five_passes() -> None:
    policy, draft = Static(EAGLE1_TREE), Language("mixed", 30, 0).draft()
    tree = policy.grow(draft)
    assert (tree.size, policy.budget, policy.max_fed) == (26, 26, 10)
    assert draft.passes == tree.num_layers == 5
    assert tree.widths() == [4, 8, 8, 3, 2]
    assert [len(layer) for layer in draft.layers] == [4, 4, 1, 1]


def test_eagle1_tree_is_the_official_one() -> None:
    path = SHARED / "vectors/eagle/static-tree/eagle2-llama-good.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name} in the shared folder")
    official = json.loads(gzip.decompress(path.read_bytes()))
    assert official["tree_choices"] == EAGLE1_TREE
    draft = Language("mixed", 30, 0).draft()
    tree = Static(EAGLE1_TREE).grow(draft)
    assert tree.parents.tolist() == official["parents"]
    assert tree.depths.tolist() == official["depths"]
    assert [len(layer) for layer in draft.layers] == official["draft_expand_counts"]


@given(st.integers(1, 12), languages(KINDS))
@bounded(60)
def test_chain_is_the_greedy_continuation(length: int, language: Language) -> None:
    policy, draft = chain(length), language.draft()
    path: Path = ()
    for _ in range(length):
        path = children(language, (0.0, path), 1)[0][1]
    tree = policy.grow(draft)
    assert tree.tokens.tolist() == [ROOT, *path]
    assert tree.parents.tolist() == [-1, *range(length)]
    assert draft.passes == tree.num_layers == length
    assert layers_of(tree)[-1] == {path: log_prob_of(language, path)}


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ([[0], [0, 0, 0]], r"\[0, 0, 0\]"),
        ([[0], [1, 0]], r"\[1, 0\]"),
        ([[0], []], r"\[\]"),
        ([[0], [-1]], r"\[-1\]"),
        ([[0], [0, -1]], r"\[0, -1\]"),
        ([[0], [1], [0]], "twice"),
    ],
)
def test_malformed_static_trees_are_refused(choices: list[list[int]], found: str) -> None:
    with pytest.raises(UsageError, match=found) as refusal:
        Static(choices)
    assert "\n" not in str(refusal.value)
