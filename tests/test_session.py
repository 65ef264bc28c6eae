"""Draft passes on the static engine against those of the eager one: same trees, few shapes, nothing left of other rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from stock_reference import PROMPT
from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, Round, decode
from talon_bench.drafters.base import Drafter
from talon_bench.drafters.head import DraftHead
from talon_bench.drafters.session import HeadDrafter
from talon_bench.drafters.static_session import StaticHeadDrafter
from talon_bench.methods import ChainConfig, EagleConfig, TalonConfig
from talon_bench.policies import Eagle, Policy, Static, Talon, chain
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from talon_bench.tree import TokenTree
from toys import VOCAB_SIZE

SHRUB = Static([[0], [1], [2], [3], [0, 0], [0, 1], [2, 0], [0, 0, 0], [2, 0, 1], [0, 0, 0, 0]])
POLICIES: dict[str, Policy] = {
    "eagle": Eagle(20, depth=5, top_k=4),
    "eagle, one layer": Eagle(6, depth=1, top_k=5),
    "talon": Talon(24, root_top_k=5),
    "talon, deep": Talon(24, root_top_k=2, alpha=0.9),
    "talon, gated root": Talon(16, alpha=0.3, init_layers=0),
    "talon, nothing fed": Talon(2, root_top_k=1),
    "static": SHRUB,
    "chain": chain(4),
}
SAMPLERS = {"greedy": Sampler(), "sampling": Sampler(temperature=1.0, top_p=0.95)}
LONG = torch.randint(VOCAB_SIZE, (240,), generator=torch.Generator().manual_seed(5)).tolist()


def rounds_of(target: Target, drafter: Drafter, prompt: list[int], cap: int, sampler: Sampler) -> Iterator[Round]:
    return decode(
        target,
        drafter,
        prompt,
        Answer(frozenset(), cap),
        sampler=sampler,
        generator=torch.Generator().manual_seed(3),
        clock=PhaseClock(),
    )


def assert_same(found: list[Round], expected: list[Round], *, scores: float = 2e-5) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same_tree(ours.tree, theirs.tree, scores)
        assert (ours.context, ours.draft_passes, ours.path) == (theirs.context, theirs.draft_passes, theirs.path)
        assert (ours.next_token, ours.emitted) == (theirs.next_token, theirs.emitted)


def assert_same_tree(found: TokenTree, expected: TokenTree, scores: float) -> None:
    for column in ("tokens", "parents", "depths"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist(), column
    torch.testing.assert_close(found.scores, expected.scores, atol=scores, rtol=1e-6)


@pytest.fixture(scope="module")
def static_target(stock: Callable[..., torch.nn.Module]) -> Target:
    return Target.wrap(stock("llama"), "llama", static=True)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_both_engines_draft_the_same_trees(kind, name, toy_target, toy_head):
    """Behind a prompt that a static pass holds, and behind one that it does not."""
    target, policy = toy_target("llama"), POLICIES[name]
    eager, static = (make(toy_head(target, kind), policy) for make in (HeadDrafter, StaticHeadDrafter))
    for prompt in (PROMPT[:7], LONG[:70]):
        expected = list(rounds_of(target, eager, prompt, 24, Sampler()))
        assert_same(list(rounds_of(target, static, prompt, 24, Sampler())), expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", ["eagle", "talon", "static"])
def test_a_whole_static_engine_writes_the_same(name, sampler, toy_target, static_target, toy_head):
    policy, sampler, target = POLICIES[name], SAMPLERS[sampler], toy_target("llama")
    eager = HeadDrafter(toy_head(target, "eagle3"), policy)
    static = StaticHeadDrafter(toy_head(static_target, "eagle3"), policy)
    expected = list(rounds_of(target, eager, PROMPT, 40, sampler))
    # Toy heads magnify rounding some hundred times, that of the features too.
    assert_same(list(rounds_of(static_target, static, PROMPT, 40, sampler)), expected, scores=1e-4)
    assert max(len(round_.path) for round_ in expected) > 1


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_window_grows_with_the_sequence(kind, toy_target, toy_head):
    """240 committed rows and room for a round need the first window, 320 the second."""
    target, policy = toy_target("qwen3"), Eagle(20, depth=5, top_k=4)
    static = StaticHeadDrafter(toy_head(target, kind), policy)
    expected = list(rounds_of(target, HeadDrafter(toy_head(target, kind), policy), LONG, 80, Sampler()))
    windows = []
    for round_, theirs in zip(rounds_of(target, static, LONG, 80, Sampler()), expected, strict=True):
        assert_same([round_], [theirs])
        windows.append(static.head.static_passes._window)
    assert sorted(windows) == windows
    assert set(windows) == {256, 512}


def test_all_shapes_are_met_before_the_first_round_and_are_few(toy_target, toy_head):
    target = toy_target("llama")
    head = toy_head(target, "eagle3")
    talon, eagle = StaticHeadDrafter(head, Talon(24, root_top_k=5)), StaticHeadDrafter(head, Eagle(20, 5, 4))
    passes = head.static_passes
    assert passes is talon._static is eagle._static

    def decoded(drafter: Drafter, prompt: list[int]) -> None:
        met = None
        for _ in rounds_of(target, drafter, prompt, 60, Sampler()):
            met = met or passes.shapes
        assert passes.shapes == met, "a shape was first met while decoding"

    decoded(talon, PROMPT)
    # One window; 1, 8, 16, 32 accepted tokens (a tree of 23 layers at most), 1, 8, 16, 32 nodes fed.
    assert passes.shapes == 8
    for prompt in (LONG[:40], PROMPT[:5], LONG[:100]):
        decoded(talon, prompt)
    assert passes.shapes == 8
    decoded(eagle, PROMPT)
    assert passes.shapes == 8, "drafters of one head share its passes"
    decoded(talon, LONG)
    assert passes.shapes == 16, "another window"


def test_a_longer_sequence_moves_the_cache_and_nothing_else(toy_target, toy_head):
    target, policy = toy_target("llama"), Talon(24, root_top_k=5)
    drafter = StaticHeadDrafter(toy_head(target, "eagle"), policy)
    before = list(rounds_of(target, drafter, PROMPT, 30, Sampler()))
    cache = drafter.head.cache
    long = LONG * 3
    expected = list(rounds_of(target, HeadDrafter(toy_head(target, "eagle"), policy), long, 10, Sampler()))
    assert_same(list(rounds_of(target, drafter, long, 10, Sampler())), expected)
    assert drafter.head.cache is not cache
    cache = drafter.head.cache
    assert_same(list(rounds_of(target, drafter, PROMPT, 30, Sampler())), before)
    assert drafter.head.cache is cache


def test_an_eager_drafter_on_the_same_head_may_move_the_cache(toy_target, toy_head):
    target, policy = toy_target("llama"), Eagle(20, 5, 4)
    head = toy_head(target, "eagle3")
    static, eager = StaticHeadDrafter(head, policy), HeadDrafter(head, policy)
    expected = list(rounds_of(target, eager, PROMPT, 30, Sampler()))
    for prompt in (PROMPT, LONG * 4, PROMPT):
        found = list(rounds_of(target, static, prompt, 30, Sampler()))
        assert_same(found, list(rounds_of(target, eager, prompt, 30, Sampler())))
    assert_same(found, expected)


def poison(drafter: StaticHeadDrafter, context: int) -> None:
    """Everything that a round may not read: states and sights of drafted nodes, cache rows behind the committed ones."""
    passes, head = drafter._static, drafter.head
    passes._outputs[:] = float("nan")
    passes._seen[1:] = True
    head.cache[..., context:, :] = float("nan")


@pytest.mark.parametrize("name", ["eagle", "talon", "talon, deep", "static"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_nothing_of_another_round_reaches_a_tree(kind, name, toy_target, toy_head, monkeypatch):
    target, policy = toy_target("llama"), POLICIES[name]
    eager, drafter = (make(toy_head(target, kind), policy) for make in (HeadDrafter, StaticHeadDrafter))
    expected = list(rounds_of(target, eager, PROMPT, 40, Sampler()))
    right = drafter.observe

    def observe(tokens: list[int], features: Tensor) -> None:
        # Between two rounds. The next catch-up pass rewrites the first rows and sees those below `_context` alone.
        if drafter.passes:
            poison(drafter, drafter._context)
        right(tokens, features)

    monkeypatch.setattr(drafter, "observe", observe)
    assert_same(list(rounds_of(target, drafter, PROMPT, 40, Sampler())), expected)


def test_passes_and_committed_rows_are_those_of_the_eager_engine(toy_target, toy_head):
    """Row for row, the cache after each round is what true features make of it."""
    target, policy = toy_target("llama"), Talon(24, root_top_k=5)

    def kept(make: Callable[[DraftHead, Policy], HeadDrafter]) -> list[Tensor]:
        drafter = make(toy_head(target, "eagle3"), policy)
        rows = rounds_of(target, drafter, PROMPT, 40, Sampler())
        return [drafter.head.cache[..., : round_.context, :].clone() for round_ in rows]

    for ours, theirs in zip(kept(StaticHeadDrafter), kept(HeadDrafter), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_round_charges_each_pass_to_drafting(toy_target, toy_head, monkeypatch):
    target, policy = toy_target("llama"), Eagle(20, depth=5, top_k=4)
    drafter = StaticHeadDrafter(toy_head(target, "eagle"), policy)
    phases: list[str] = []
    clock = PhaseClock()
    monkeypatch.setattr(clock, "lap", phases.append)
    answer = Answer(frozenset(), 20)
    run = partial(decode, sampler=Sampler(), generator=torch.Generator(), clock=clock)
    rounds = list(run(target, drafter, PROMPT, answer))
    one = ["other", "draft"] * 5 + ["other", "verify", "other"]
    assert phases == ["prefill", *one * len(rounds)]


@pytest.mark.parametrize("config", [TalonConfig, EagleConfig, ChainConfig])
def test_methods_draft_on_the_engine_of_their_target(config, toy_target, static_target, toy_head):
    method = config(name="method", label="Method", head="eagle3")
    for target, kind in ((toy_target("llama"), HeadDrafter), (static_target, StaticHeadDrafter)):
        assert type(method.build(target, toy_head(target, "eagle3"))) is kind
