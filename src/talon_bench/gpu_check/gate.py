"""Stage "gate": trees grown on the device from given distributions, ties included, against those grown on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.doctor.finding import Finding, fault, ok
from talon_bench.gpu_check.build import CPU
from talon_bench.gpu_check.context import Context
from talon_bench.policies import Eagle, Policy, Talon
from talon_bench.tree import TokenTree

VOCAB = 2048
SEEDS = 3
STEP = 1 / 16
"""Log-probabilities are rounded to multiples of it, so that many path scores tie."""

POLICIES: dict[str, tuple[Policy, bool]] = {
    "TALON": (Talon(60), True),
    "TALON, alpha 0.5": (Talon(60, alpha=0.5), True),
    "TALON, alpha 0.001": (Talon(60, alpha=0.001), True),
    "TALON, no plain layer": (Talon(60, init_layers=0), True),
    "TALON, two plain layers": (Talon(60, init_layers=2), False),
    "TALON, 128 nodes": (Talon(128), True),
    "EAGLE, depth 8": (Eagle(60, 8), False),
}
"""And whether scores may tie: torch.topk, which plain layers and EAGLE use, settles ties as it likes."""


class Table:
    """A `policies.Draft` of given distributions, the same for every device."""

    root = 0

    def __init__(self, device: torch.device, seed: int, *, queued: bool, ties: bool) -> None:
        self.queued = queued
        self._device = device
        self._ties = ties
        self._generator = torch.Generator().manual_seed(seed)

    def root_log_probs(self) -> Tensor:
        return self._rows(1)[0].to(self._device)

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        rows = self._rows(tokens.shape[0])
        return ((rows / STEP).round() * STEP if self._ties else rows).to(self._device)

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

    def _rows(self, count: int) -> Tensor:
        return (4 * torch.randn(count, VOCAB, generator=self._generator)).log_softmax(-1)


def gate(context: Context) -> list[Finding]:
    """Every policy on every seed; a tree that differs is a fault."""
    differing = {}
    for name, (policy, ties) in POLICIES.items():
        grown = [
            (
                policy.grow(Table(context.device, seed, queued=True, ties=ties)),
                policy.grow(Table(CPU, seed, queued=False, ties=ties)),
            )
            for seed in range(SEEDS)
        ]
        differing[name] = sum(not _equal(*pair) for pair in grown)
    context.keep("differing", differing)
    context.keep("trees", SEEDS)
    wrong = [name for name, count in differing.items() if count]
    total = f"{len(POLICIES) * SEEDS} trees of {len(POLICIES)} policies"
    if wrong:
        return [fault("trees", f"{', '.join(wrong)} differ", f"{total} as on a CPU", "do not publish: report it")]
    return [ok("trees", f"{total} as on a CPU")]


def _equal(one: TokenTree, other: TokenTree) -> bool:
    return all(
        torch.equal(getattr(one, part).cpu(), getattr(other, part).cpu())
        for part in ("tokens", "parents", "depths", "scores")
    )
