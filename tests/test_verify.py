"""Acceptance by hand, against a naive search, and against recorded decisions of the official EAGLE code."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pathlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from talon_bench.sampling import Sampler
from talon_bench.tree import TokenTree, root_only
from talon_bench.verify import Acceptance, accept, accept_greedy, walk
from toy_draft import bounded

SHARED = pathlib.Path(os.environ.get("TALON_BENCH_SHARED", pathlib.Path(__file__).parents[1].parent / "shared"))


def tree_of(tokens: list[int], parents: list[int]) -> TokenTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return TokenTree(
        torch.tensor(tokens),
        torch.tensor(parents),
        torch.tensor(depths),
        torch.zeros(len(tokens)),
        max(depths),
    )


@st.composite
def verified(draw: st.DrawFn) -> tuple[TokenTree, Tensor]:
    """(tree, logits [nodes, vocab]): siblings differ, parents come first; few tokens, so many paths match."""
    vocab = draw(st.integers(2, 5))
    tokens, parents = [0], [-1]
    for _ in range(draw(st.integers(0, 40))):
        parent = draw(st.integers(max(0, len(tokens) - draw(st.integers(1, 40))), len(tokens) - 1))
        taken = {token for token, above in zip(tokens, parents, strict=True) if above == parent}
        if len(taken) < vocab:
            tokens.append(draw(st.sampled_from(sorted(set(range(vocab)) - taken))))
            parents.append(parent)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return tree_of(tokens, parents), torch.randn(len(tokens), vocab, generator=generator)


@given(verified())
@bounded(200)
def test_greedy_takes_the_longest_path_of_arg_maxima(case: tuple[TokenTree, Tensor]) -> None:
    tree, logits = case
    tokens, parents, best = tree.tokens.tolist(), tree.parents.tolist(), logits.argmax(-1).tolist()
    valid = []
    for node in range(tree.size):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        if all(tokens[child] == best[parent] for parent, child in itertools.pairwise(path)):
            valid.append(path)
    longest = max(valid, key=len)
    acceptance = accept_greedy(tree, logits)
    assert acceptance.path == longest
    assert acceptance.next_token == best[longest[-1]]
    assert accept(tree, logits, Sampler(), torch.Generator()) == acceptance


def scripted(*draws: float) -> Callable[[], float]:
    """A uniform source that runs out after `draws`."""
    remaining = iter(draws)
    return lambda: next(remaining)


LAW = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)


def law(_: int) -> Tensor:
    return LAW


@pytest.mark.parametrize(
    ("draws", "path", "rest"),
    [
        # Child 1 (token 0, p 0.5) is taken up to u = 0.5; it is a leaf, so the next token follows p itself.
        ([0.0], [0, 1], [0.5, 0.3, 0.2, 0.0]),
        ([0.49], [0, 1], [0.5, 0.3, 0.2, 0.0]),
        # Child 2 (token 1) then has 0.3 of the remaining 0.5: taken up to u = 0.6. Its child has p 0.2.
        ([0.51, 0.59, 0.19], [0, 2, 4], [0.5, 0.3, 0.2, 0.0]),
        ([0.51, 0.59, 0.21], [0, 2], [0.625, 0.375, 0.0, 0.0]),
        # Child 3 (token 3) is impossible, whatever is drawn; token 2 is all that is left.
        ([0.51, 0.61, 0.0], [0], [0.0, 0.0, 1.0, 0.0]),
    ],
)
def test_golden_walk(draws: list[float], path: list[int], rest: list[float]) -> None:
    tree = tree_of([9, 0, 1, 3, 2], [-1, 0, 0, 0, 2])
    walked, left = walk(tree, law, scripted(*draws))
    assert walked == path
    assert left.tolist() == pytest.approx(rest)
    assert LAW.tolist() == [0.5, 0.3, 0.2, 0.0], "the walk changed its input"


def test_walk_of_the_root_alone_draws_nothing() -> None:
    path, rest = walk(root_only(9), law, scripted())
    assert path == [0]
    assert torch.equal(rest, LAW)


def test_children_rejected_by_rounding_alone_still_give_a_token() -> None:
    """Ten children of 0.1 hold all the mass, but 1 - 9 x 0.1 exceeds 0.1 in floating point."""
    tree = tree_of([0, *range(10)], [-1] + [0] * 10)
    tenths = torch.full((10,), 0.1, dtype=torch.float64)
    tenths[3] += 1e-17
    path, rest = walk(tree, lambda _: tenths, lambda: 1 - 2**-53)
    assert len(path) == 2
    assert path[1] in range(1, 11)
    assert torch.equal(rest, tenths)


def test_sampling_accept_follows_the_law() -> None:
    """4000 seeded acceptances: the first token emitted after the root has the target's frequencies."""
    tree = tree_of([9, 1, 0], [-1, 0, 1])
    logits = torch.tensor([8.0, 4.0, 2.0, 2.0]).log().repeat(3, 1)
    sampler, generator = Sampler(0.5), torch.Generator().manual_seed(0)
    counts = torch.zeros(4)
    for _ in range(4000):
        acceptance = accept(tree, logits, sampler, generator)
        path = acceptance.path
        counts[int(tree.tokens[path[1]]) if len(path) > 1 else acceptance.next_token] += 1
    expected = sampler.probabilities(logits[0]) * 4000
    # Chi-square with three degrees of freedom: 16.3 is passed once in a thousand seeds.
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3


def test_sampling_accept_repeats_with_its_seed() -> None:
    tree = tree_of([9, 0, 1, 3, 2], [-1, 0, 0, 0, 2])
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    runs = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(7)
        runs.append([accept(tree, logits, Sampler(1.0), generator) for _ in range(20)])
    assert runs[0] == runs[1]


SAMPLERS = [Sampler(1.0), Sampler(0.5, top_p=0.9), Sampler(1.5, top_k=2)]


@given(verified(), st.sampled_from(SAMPLERS), st.integers(0, 2**31))
@bounded(200)
def test_one_transfer_brings_the_same_acceptance(case: tuple[TokenTree, Tensor], sampler: Sampler, seed: int) -> None:
    """Path, token and the number of draws: the generators stay in step."""
    tree, logits = case
    before = logits.clone()
    walking, at_once = (torch.Generator().manual_seed(seed) for _ in range(2))
    for _ in range(8):
        expected = accept(tree, logits, sampler, walking)
        assert accept(tree, logits, sampler, at_once, at_once=True) == expected
        assert expected.tokens == tree.tokens[expected.path].tolist()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_only_what_the_path_rests_on_must_be_finite(value: float, sampler: Sampler, at_once: bool) -> None:
    """A chain of two whose second node is never accepted: logits after it do not matter, those before it do."""
    tree, generator = tree_of([9, 0, 1], [-1, 0, 1]), torch.Generator().manual_seed(0)
    logits = torch.full((3, 3), -1e4)
    logits[[0, 1, 2], [0, 2, 0]] = 1e4
    assert accept(tree, logits, sampler, generator, at_once) == Acceptance([0, 1], [9, 0], 2, True)
    for node, finite in ((2, True), (1, False), (0, False)):
        poisoned = logits.clone()
        poisoned[node, 2] = value
        assert accept(tree, poisoned, sampler, generator, at_once).finite is finite, node


def test_walk_repeats_the_official_decisions() -> None:
    """96 recorded acceptances with the numbers that were drawn; none uses top-p and top-k together."""
    path = SHARED / "vectors/eagle/sampling/posterior-cases.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name} in the shared folder")
    cases = json.loads(gzip.decompress(path.read_bytes()))["cases"]
    for case in cases:
        tree = tree_of(case["draft_tokens"], case["parents"])
        sampler = Sampler(case["temperature"], case["top_p"] or 1.0, case["top_k"])
        laws = sampler.probabilities(torch.tensor(case["node_logits"]))
        draws = iter(case["r"])
        walked, rest = walk(tree, laws.__getitem__, draws.__next__)
        assert list(draws) == [], "fewer children were tried than recorded"
        assert tree.tokens[walked].tolist() == case["accepted_tokens"]
        # The record keeps six decimals of distributions computed from logits with three.
        assert rest.tolist() == pytest.approx(case["sample_p"], abs=2e-3)
    assert len(cases) == 96
