"""The shipped heads on the embedded target: both engines draft the same trees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.drafters.checkpoint import load_head
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.head import DraftHead
from talon_bench.drafters.session import HeadDrafter
from talon_bench.drafters.static_session import StaticHeadDrafter
from talon_bench.embedded import FOLDER
from talon_bench.paths import cache_dir, shipped
from talon_bench.policies import Eagle, Talon
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from talon_bench.tree import TokenTree

HEADS = {"smollm2-135m-eagle2": Eagle1Head, "smollm2-135m-eagle3": Eagle3Head}
POLICIES = {"eagle": Eagle(40, depth=5, top_k=8), "talon": Talon(40), "talon, deep": Talon(40, alpha=0.3)}
QUESTION = "Write a haiku about the sea, then explain it."


@pytest.fixture(scope="module")
def target() -> Target:
    from transformers import AutoModelForCausalLM

    folder = cache_dir() / FOLDER
    if not (folder / "model.safetensors").is_file():
        pytest.skip("the embedded target has not been made on this machine")
    return Target.wrap(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), "smollm2")


@pytest.fixture(scope="module")
def prompt(target: Target) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(cache_dir() / FOLDER)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    return tokenizer.encode(text, add_special_tokens=False)


class Twins:
    """Two drafters of the same sequence; what the first proposes is verified."""

    def __init__(self, first: HeadDrafter, second: HeadDrafter) -> None:
        self._both = (first, second)
        self.budget, self.feature_layers = first.budget, first.feature_layers
        self.pairs: list[tuple[TokenTree, TokenTree]] = []

    @property
    def passes(self) -> int:
        return self._both[0].passes

    def start(self, prompt: list[int], capacity: int) -> None:
        for drafter in self._both:
            drafter.start(prompt, capacity)

    def observe(self, tokens: list[int], features: Tensor) -> None:
        for drafter in self._both:
            drafter.observe(tokens, features)

    def propose(self, root: int, clock: PhaseClock) -> TokenTree:
        first, second = (drafter.propose(root, clock) for drafter in self._both)
        self.pairs.append((first, second))
        return first


def load(name: str, target: Target) -> DraftHead:
    head = HEADS[name](load_head(shipped("heads") / name, target.shape, name=name), target)
    target.tap(head.spec.feature_layers)
    return head


@pytest.mark.parametrize("name", HEADS)
def test_shipped_heads_draft_the_same_trees_on_both_engines(name: str, target: Target, prompt: list[int]) -> None:
    eager, static = load(name, target), load(name, target)
    for label, policy in POLICIES.items():
        drafted = trees(target, HeadDrafter(eager, policy), StaticHeadDrafter(static, policy), prompt)
        assert max(first.num_layers for first, _ in drafted) > 1
        for first, second in drafted:
            for column in ("tokens", "parents", "depths"):
                assert getattr(first, column).tolist() == getattr(second, column).tolist(), (label, column)
            torch.testing.assert_close(first.scores, second.scores, atol=1e-4, rtol=1e-6)


def trees(
    target: Target, first: HeadDrafter, second: HeadDrafter, prompt: list[int]
) -> list[tuple[TokenTree, TokenTree]]:
    twins = Twins(first, second)
    rule = {"sampler": Sampler(), "generator": torch.Generator(), "clock": PhaseClock()}
    for _ in decode(target, twins, prompt, Answer(frozenset(), 16), **rule):
        pass
    return twins.pairs
