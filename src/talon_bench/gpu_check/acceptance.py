"""Stage "acceptance": random trees that hold AR's own continuation on some path; what is written must be AR's answer.

It needs no trained head: verification, acceptance and commit meet long and short paths through trees of any form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.doctor.finding import Finding, fault, ok
from talon_bench.drafters.base import Drafter, NoDrafter
from talon_bench.gpu_check.build import numbers, random_target, random_tree
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.scale import SMALL
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from talon_bench.tree import TokenTree

PROMPTS = (5, 60, 180)
"""Lengths; the cache passes from one window to the next behind the last."""
NODES = (2, 8, 17, 60)
"""Sizes of the trees, in turn."""
TOKENS = 40


class Knowing:
    """A drafter that knows the answer: each tree is random, but for one path of it that goes on as the answer does."""

    budget = max(NODES)
    feature_layers = None
    passes = 0

    def __init__(self, answer: Sequence[int], vocab_size: int, device: torch.device) -> None:
        self._answer = list(answer)
        self._vocab_size = vocab_size
        self._device = device

    def start(self, prompt: list[int], capacity: int) -> None:
        self._at = -len(prompt)  # place of the next root in the answer
        self._round = 0

    def observe(self, tokens: list[int], features: Tensor | None) -> None:
        self._at += len(tokens)

    def propose(self, root: int, clock: PhaseClock) -> TokenTree:
        tree, path = random_tree(NODES[self._round % len(NODES)], self._vocab_size, self._device, seed=self._round)
        self._round += 1
        right = self._answer[self._at : self._at + len(path)]
        tree.tokens[0] = root
        tree.tokens[torch.tensor(path[: len(right)], device=self._device)] = torch.tensor(right, device=self._device)
        return tree


def acceptance(context: Context) -> list[Finding]:
    """Answers to prompts of several lengths, in float32."""
    target = random_target(SMALL, context.device, torch.float32)
    rows = []
    for length in PROMPTS:
        prompt = numbers(length, SMALL.vocab_size)
        expected, _ = write(target, NoDrafter(target.device), prompt)
        found, accepted = write(target, Knowing(expected, SMALL.vocab_size, target.device), prompt)
        rows.append({"prompt": length, "equal": found == expected, "mat": accepted})
    context.keep("answers", rows)
    wrong = [row["prompt"] for row in rows if not row["equal"]]
    mat = ", ".join(f"{row['mat']:.2f}" for row in rows)
    if wrong:
        return [fault("answers", f"behind prompts of {wrong} tokens they differ from AR's", "all equal", "report it")]
    return [ok("answers", f"{len(rows)} of {len(rows)} equal AR's; tokens a round: {mat}")]


def write(target: Target, drafter: Drafter, prompt: list[int]) -> tuple[list[int], float]:
    """A greedy answer and its tokens per round."""
    answer = Answer(frozenset(), TOKENS)
    rounds = decode(
        target, drafter, prompt, answer,
        sampler=Sampler(), generator=torch.Generator().manual_seed(0), clock=PhaseClock(),
    )  # fmt: skip
    emitted = [entry.emitted for entry in rounds]
    return answer.ids, sum(emitted) / len(emitted)
