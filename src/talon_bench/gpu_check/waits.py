"""Stages "waits" and "clock": how often a round waits for the device, and whether event times are true."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.doctor.finding import Finding, fault, ok, warning
from talon_bench.drafters.base import Drafter, NoDrafter
from talon_bench.drafters.static_session import StaticHeadDrafter
from talon_bench.gpu_check.build import SHARPNESS, numbers, random_head, random_target
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.scale import SMALL, SMALL_DRAFT_VOCAB
from talon_bench.policies import Eagle, Talon, chain
from talon_bench.sampling import Sampler
from talon_bench.stats import median
from talon_bench.target import Target

RULES = {"greedy": Sampler(), "sampling": Sampler(1.0, 0.9)}
PROMPT, TOKENS = 40, 9
REPEATS, PRODUCTS = 5, 10
WIDTH = {"cuda": 4096, "cpu": 256}
"""Width of the square matrices by which the clock is tried."""


def waits(context: Context) -> list[Finding]:
    """Waits of each round after the first, by method and acceptance rule, against what docs/engine.md promises."""
    target = random_target(SMALL, context.device, torch.float32)
    heads = {kind: random_head(target, kind, SMALL_DRAFT_VOCAB, sharpness=SHARPNESS) for kind in ("eagle2", "eagle3")}
    policies = {
        "EAGLE-2": ("eagle2", Eagle(60, 6)),
        "EAGLE-3": ("eagle3", Eagle(60, 8)),
        "TALON": ("eagle3", Talon(60)),
        "chain": ("eagle3", chain(4)),
    }
    drafters: dict[str, Drafter] = {"AR": NoDrafter(target.device)}
    drafters |= {name: StaticHeadDrafter(heads[kind], policy) for name, (kind, policy) in policies.items()}
    rows, places = [], Counter()
    for name, drafter in drafters.items():
        plain = policies[name][1].init_layers if name == "TALON" else None
        for rule, sampler in RULES.items():
            found, promised, asked = _rounds(target, drafter, sampler, plain)
            places += asked
            rows.append({"method": name, "rule": rule, "waits": found, "promised": promised})
    context.keep("rounds", rows)
    context.keep("places", dict(places))
    return [_finding(rows, places, context.on_gpu)]


@contextlib.contextmanager
def counted(device: torch.device) -> Iterator[Counter[str]]:
    """The waits that torch notices while this is open, by file and line that asked for them; none on a CPU."""
    found: Counter[str] = Counter()
    if device.type != "cuda":
        yield found
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for one in caught:
        if "called a synchronizing" in str(one.message):
            found[f"{Path(one.filename).name}:{one.lineno}"] += 1


def _rounds(
    target: Target, drafter: Drafter, sampler: Sampler, plain: int | None
) -> tuple[list[int], list[int], Counter[str]]:
    """(waits, promised waits) of each round but the first, which reads the prompt, and where all of them were asked for.

    plain: TALON's layers without a gate; None for policies that have none with one.
    """
    rounds = decode(
        target, drafter, numbers(PROMPT, target.shape.vocab_size), Answer(frozenset(), TOKENS),
        sampler=sampler, generator=torch.Generator().manual_seed(0), clock=PhaseClock(),
    )  # fmt: skip
    next(rounds)
    found, promised, places = [], [], Counter()
    while True:
        with counted(target.device) as asked:
            entry = next(rounds, None)
        if entry is None:
            return found, promised, places
        found.append(sum(asked.values()))
        promised.append(1 if plain is None else 1 + max(entry.tree.num_layers - plain, 0))
        places += asked


def _finding(rows: list[dict], places: Counter[str], on_gpu: bool) -> Finding:
    rounds = sum(len(row["waits"]) for row in rows)
    if not on_gpu:
        return ok("waits", f"{rounds} rounds, not counted: not on a GPU")
    over = [
        f"{row['method']} ({row['rule']})"
        for row in rows
        if any(found > promised for found, promised in zip(row["waits"], row["promised"], strict=True))
    ]
    if over:
        text = f"{', '.join(over)} wait more often; all waits: {', '.join(places)}"
        return fault("waits", text, "one a verification, one a gated layer", "see docs/engine.md")
    return ok("waits", f"{rounds} rounds of {len(rows)} kinds wait as often as promised or less")


def clock(context: Context) -> list[Finding]:
    """Time of some matrix products by the clock of the device, against the wall around them."""
    width = WIDTH[context.device.type]
    matrix, out = torch.randn(2, width, width, device=context.device)
    device_clock = PhaseClock.on(context.device)
    rows = []
    for _ in range(REPEATS + 1):
        device_clock.restart()
        start = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix, out=out)
        device_clock.lap("products")
        device_clock.lap("rest")
        spent = device_clock.take()
        rows.append({**spent, "wall": (time.perf_counter() - start) * 1e3})
    rows = rows[1:]
    context.keep("milliseconds", rows)
    ratio = median([row["products"] / row["wall"] for row in rows]).value
    text = f"{ratio:.3f} of the wall time of {PRODUCTS} products in the median of {REPEATS}"
    if 0.9 <= ratio <= 1.02:
        return [ok("clock", text)]
    return [warning("clock", text, "0.9 to 1.02", "other work on the machine? phase times are in doubt")]
