"""TokenTree against naive walks over the parents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talon_bench.tree import TokenTree, from_layers, root_only
from toy_draft import bounded


def tree_of(parents: list[int], scores: list[float], spare_layers: int = 0) -> TokenTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return TokenTree(
        torch.arange(len(parents)),
        torch.tensor(parents),
        torch.tensor(depths),
        torch.tensor(scores),
        max(depths) + spare_layers,
    )


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Any shape, from stars to chains, nodes in any order that puts parents first; scores with ties."""
    size = draw(st.integers(1, 70))
    reach = draw(st.integers(1, 70))
    parents = [-1] + [draw(st.integers(max(0, node - reach), node - 1)) for node in range(1, size)]
    scores = [0.0] + [-0.5 * draw(st.integers(0, 6)) for _ in range(1, size)]
    return tree_of(parents, scores, draw(st.integers(0, 3)))


@given(trees())
@bounded(120)
def test_ancestor_mask_is_the_walk_to_the_root(tree: TokenTree) -> None:
    parents = tree.parents.tolist()
    expected = torch.zeros(tree.size, tree.size, dtype=torch.bool)
    for node in range(tree.size):
        ancestor = node
        while ancestor >= 0:
            expected[node, ancestor] = True
            ancestor = parents[ancestor]
    assert torch.equal(tree.ancestor_mask(), expected)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64])
def test_ancestor_mask_of_a_chain_is_lower_triangular(length: int) -> None:
    tree = tree_of([-1, *range(length)], [0.0] * (length + 1))
    assert torch.equal(tree.ancestor_mask(), torch.ones(length + 1, length + 1).tril().bool())


@given(trees())
@bounded(60)
def test_widths_count_the_nodes_of_each_layer(tree: TokenTree) -> None:
    depths = tree.depths.tolist()
    assert tree.widths() == [depths.count(depth) for depth in range(1, max(depths) + 1)]


@given(trees(), st.data())
@bounded(60)
def test_ranks_sort_each_layer_by_score_then_order(tree: TokenTree, data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, tree.size - 1), max_size=8))
    depths, scores = tree.depths.tolist(), tree.scores.tolist()
    expected = []
    for node in nodes:
        layer = [other for other in range(tree.size) if depths[other] == depths[node]]
        expected.append(sorted(layer, key=lambda other: (-scores[other], other)).index(node))
    assert tree.ranks(nodes) == expected


def test_from_layers_joins_layers_in_order() -> None:
    first = (torch.tensor([7, 9]), torch.tensor([0, 0]), torch.tensor([-0.5, -1.0]))
    second = (torch.tensor([4, 7, 5]), torch.tensor([2, 1, 2]), torch.tensor([-1.25, -2.0, -3.0]))
    tree = from_layers(42, [first, second])
    assert tree.tokens.tolist() == [42, 7, 9, 4, 7, 5]
    assert tree.parents.tolist() == [-1, 0, 0, 2, 1, 2]
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2]
    assert tree.scores.tolist() == [0.0, -0.5, -1.0, -1.25, -2.0, -3.0]
    assert (tree.size, tree.num_layers, tree.widths()) == (6, 2, [2, 3])
    assert tree.ranks([2, 4, 5]) == [1, 1, 2]
    assert {tree.tokens.dtype, tree.parents.dtype, tree.depths.dtype} == {torch.int64}
    assert tree.scores.dtype == torch.float32


def test_root_only_is_a_plain_decoding_step() -> None:
    tree = root_only(42)
    assert (tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()) == ([42], [-1], [0])
    assert (tree.size, tree.num_layers, tree.widths()) == (1, 0, [])
    assert tree.ancestor_mask().tolist() == [[True]]
