"""The decode loop, one for every method: propose a tree, verify it in one target pass, keep what the target agrees with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from talon_bench.clock import PhaseClock
from talon_bench.drafters.base import Drafter
from talon_bench.errors import UsageError
from talon_bench.sampling import Sampler, draw
from talon_bench.target import Target
from talon_bench.transfer import to_device
from talon_bench.tree import TokenTree
from talon_bench.verify import accept


@dataclass
class Answer:
    """The tokens of one answer. The only place where output is cut: at the first end-of-sequence id and at the cap."""

    eos_ids: frozenset[int]
    max_new_tokens: int
    ids: list[int] = field(default_factory=list)
    stop: str | None = None
    """None while open, then "eos" or "cap"."""

    def extend(self, tokens: list[int]) -> int:
        """Append tokens up to and including the first EOS, and up to the cap; the number appended."""
        before = len(self.ids)
        for token in tokens:
            if self.stop:
                break
            self.ids.append(token)
            if token in self.eos_ids:
                self.stop = "eos"
            elif len(self.ids) >= self.max_new_tokens:
                self.stop = "cap"
        return len(self.ids) - before


@dataclass(frozen=True)
class Round:
    """One verification: what was drafted, what came of it."""

    context: int
    """Committed tokens before the pass."""
    draft_passes: int
    tree: TokenTree
    path: list[int]
    """Accepted nodes, root first."""
    next_token: int
    """The target's own token after the path."""
    emitted: int
    """Tokens that reached the answer."""


def prefill(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    answer: Answer,
    sampler: Sampler,
    generator: torch.Generator,
) -> int:
    """Run the prompt through the target; the first token, chosen by the target and already in `answer`."""
    capacity = len(prompt) + answer.max_new_tokens + 1
    target.allocate(capacity + drafter.budget)
    drafter.start(prompt, capacity)
    logits = target.prefill(prompt)
    if not logits.amax().isfinite():
        raise _overflow(target)
    first = int(logits.argmax()) if sampler.greedy else draw(sampler.probabilities(logits), generator)
    _show(target, drafter, prompt, list(range(len(prompt))))
    answer.extend([first])
    return first


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    answer: Answer,
    *,
    sampler: Sampler,
    generator: torch.Generator,
    clock: PhaseClock,
    eager: bool = False,
) -> Iterator[Round]:
    """Decode `prompt` into `answer`, one Round per verification.

    eager: target passes are launched kernel by kernel, whatever the engine of the run.

    The clock's phases are "prefill", then "draft" and "verify" for the passes of the drafter and the target, and "other"
    for all that is between them. Time that the caller spends between rounds is charged to nothing.
    """
    # A CPU computes what the acceptance asks for; behind a queue each question costs a wait.
    at_once = target.static or target.device.type != "cpu"
    clock.restart()
    token = prefill(target, drafter, prompt, answer, sampler, generator)
    clock.lap("prefill")
    while answer.stop is None:
        clock.restart()
        context, passes = target.cache.length, drafter.passes
        tree = drafter.propose(token, clock)
        visible = tree.ancestor_mask() if tree.size > 1 else None
        clock.lap("other")
        logits = target.verify(tree.tokens, tree.depths, visible, eager)
        clock.lap("verify")
        accepted = accept(tree, logits, sampler, generator, at_once)
        if not accepted.finite:
            raise _overflow(target)
        target.commit(accepted.path)
        _show(target, drafter, accepted.tokens, accepted.path)
        token = accepted.next_token
        emitted = answer.extend([*accepted.tokens[1:], token])
        clock.lap("other")
        yield Round(context, drafter.passes - passes, tree, accepted.path, token, emitted)


def _show(target: Target, drafter: Drafter, tokens: list[int], rows: list[int]) -> None:
    """Hand newly committed tokens, rows of the last pass, to the drafter with the features it asks for."""
    features = None
    if drafter.feature_layers is not None:
        features = target.features(drafter.feature_layers, to_device(rows, target.device))
    drafter.observe(tokens, features)


def _overflow(target: Target) -> UsageError:
    """What to raise where logits have no finite maximum: activations overflowed (float16)."""
    found = str(target.dtype).removeprefix("torch.")
    return UsageError(f"the logits of {target.name} are not finite in {found}; set target.dtype to bfloat16 or float32")
