"""Prompt lookup against a search that reads the whole context every time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_bench.clock import PhaseClock
from talon_bench.drafters.lookup import PromptLookup
from toy_draft import bounded


def propose(drafter: PromptLookup, root: int) -> list[int]:
    """Drafted tokens; fails unless they form a chain under the root."""
    tree = drafter.propose(root, PhaseClock())
    assert tree.parents.tolist() == list(range(-1, tree.size - 1))
    assert tree.depths.tolist() == list(range(tree.size))
    assert tree.num_layers == tree.size - 1 < drafter.budget
    tokens = tree.tokens.tolist()
    assert tokens[0] == root
    return tokens[1:]


def search(context: list[int], length: int, max_ngram: int) -> list[int]:
    for n in range(min(max_ngram, len(context)), 0, -1):
        for start in range(len(context) - n - 1, -1, -1):
            if context[start : start + n] == context[-n:]:
                return context[start + n : start + n + length]
    return []


@st.composite
def conversations(draw: st.DrawFn) -> list[list[int]]:
    """A prompt and the first token after it, then what each round emitted: accepted tokens, next root."""
    token = st.integers(0, draw(st.integers(1, 4)))
    prompt = draw(st.lists(token, min_size=2, max_size=30))
    return [prompt, *draw(st.lists(st.lists(token, min_size=1, max_size=6), max_size=12))]


@given(st.lists(conversations(), min_size=1, max_size=2), st.integers(1, 6), st.integers(1, 4))
@bounded(200)
def test_equals_a_search_of_the_context_in_every_round(
    sequences: list[list[list[int]]], length: int, max_ngram: int
) -> None:
    """One drafter for several rounds of up to two sequences: its index is reused, then forgotten."""
    drafter = PromptLookup(length, max_ngram, "cpu")
    for sequence in sequences:
        drafter.start(sequence[0], 1000)
        context: list[int] = []
        pending: list[int] = []  # the root, emitted and not yet committed
        for emitted in sequence:
            *committed, root = pending + emitted
            drafter.observe(committed, None)
            context += emitted
            assert propose(drafter, root) == search(context, length, max_ngram)
            pending = [root]
    assert drafter.passes == 0


@pytest.mark.parametrize(
    ("context", "drafted"),
    [
        # The longest match wins over a later, shorter one: 1 2 3 was followed by 4 5.
        ([1, 2, 3, 4, 5, 9, 3, 7, 8, 1, 2, 3], [4, 5, 9]),
        # The latest of equal matches wins.
        ([1, 2, 5, 0, 1, 2, 6, 0, 3, 1, 2], [6, 0, 3]),
        # A repeated token finds itself one step back, and what follows ends with the context.
        ([7, 7], [7]),
        ([1, 2, 3], []),
        ([4], []),
    ],
)
def test_golden_continuations(context: list[int], drafted: list[int]) -> None:
    drafter = PromptLookup(length=3, max_ngram=3, device="cpu")
    *prompt, root = context
    drafter.start(prompt, 100)
    drafter.observe(prompt, None)
    assert propose(drafter, root) == drafted
