"""How long a job takes, by a model simple enough to be checked by hand: tokens / MAT x (verification + draft passes).

Passes on a GPU are weights read at a share of the memory bandwidth. On a CPU a pass over a tree grows as the measured curve
of the embedded default does (results/reference), which also gives that target's own times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from talon_bench.methods import (
    AutoregressiveConfig,
    ChainConfig,
    EagleConfig,
    LookupConfig,
    MethodConfig,
    StaticConfig,
    TalonConfig,
)
from talon_bench.paths import shipped
from talon_bench.plan.devices import Device
from talon_bench.plan.memory import Engine, HeadSize
from talon_bench.plan.sizes import cache_bytes, target_size
from talon_bench.schema import ArchitectureConfig

TARGET_SHARE = {"cuda": 0.22, "cpu": 0.4}
"""Share of the bandwidth that a plain pass reaches. cuda: the paper's own baseline, whose Llama-3.1-8B decodes 264 / 3.75
tokens/s where the memory of its H200 would allow 319 (arXiv:2601.07353). cpu: the embedded default in bfloat16."""
HEAD_SHARE = {"cuda": 0.15, "cpu": 0.3}
"""The same of a draft pass, which is bound by launches. cuda: so that an 8B target's EAGLE-3 pass costs 0.083 plain passes, as
the paper's speedups imply."""
MAT = {"cuda": 5.0, "cpu": 2.4}
"""Tokens per verification of a tree: the mean of the paper's 30 cells at T=0; the embedded default's."""
LOOKUP_MAT = 1.6
NODES_PER_PASS = 8.5
"""Nodes that TALON adds per draft pass: 60 in about 7 passes, as the paper's speedups imply."""


@dataclass(frozen=True)
class Round:
    """What a method's average round is taken to be."""

    mat: float
    passes: float
    nodes: int


@dataclass(frozen=True)
class Pace:
    """Seconds of passes. `growth` is the cost of a pass over (1, .., n) nodes relative to one: pairs (nodes, factor)."""

    plain: float
    drafts: dict[str, float]
    growth: tuple[tuple[float, float], ...]
    origin: str

    def verify(self, nodes: int) -> float:
        sizes, factors = zip(*self.growth, strict=True)
        return self.plain * float(np.interp(nodes, sizes, factors))


def pace(
    architecture: ArchitectureConfig,
    engine: Engine,
    heads: list[HeadSize],
    device: Device,
    *,
    context: int,
    embedded: bool,
) -> Pace:
    """Times of the target's and the heads' passes at `context` tokens in the cache."""
    size = target_size(architecture)
    projection = architecture.vocab_size * architecture.hidden_size
    read = (size.layer * size.layers + size.norm + projection) * engine.bytes
    read += cache_bytes(architecture, context, engine.bytes)
    plain = read / (device.bandwidth * TARGET_SHARE[device.kind])
    borrowed = {"eagle2": projection, "eagle3": 0}
    drafts = {
        head.kind: (head.parameters + borrowed[head.kind]) * engine.bytes / (device.bandwidth * HEAD_SHARE[device.kind])
        for head in heads
    }
    if device.kind != "cpu":
        return Pace(plain, drafts, ((1, 1.0),), f"{TARGET_SHARE['cuda']:.0%} of {device.bandwidth / 1e9:.0f} GB/s")
    curve = _curve("float32" if engine.dtype == "float32" else "bfloat16")
    growth = tuple((tokens, ms / curve[0][1]) for tokens, ms in curve)
    if embedded and len(curve) > 1:
        plain = curve[0][1] / 1e3
        return Pace(plain, drafts, growth, "measured, results/reference (2 cores)")
    return Pace(plain, drafts, growth, f"{TARGET_SHARE['cpu']:.0%} of {device.bandwidth / 1e9:.0f} GB/s")


def seconds(method: MethodConfig, pace: Pace, tokens: int, kind: str) -> float:
    """Decode time of `tokens` new tokens by one method; `kind` of the device."""
    average = round_of(method, kind)
    head = getattr(method, "head", None)
    drafting = average.passes * pace.drafts.get(head, 0.0)
    return tokens / average.mat * (pace.verify(average.nodes) + drafting)


def round_of(method: MethodConfig, kind: str) -> Round:
    """The assumed average round of a method on a device of this kind."""
    tree = MAT[kind]
    if isinstance(method, AutoregressiveConfig):
        return Round(1.0, 0, 1)
    if isinstance(method, LookupConfig):
        return Round(min(LOOKUP_MAT, method.length + 1), 0, method.length + 1)
    if isinstance(method, ChainConfig):
        return Round(min(tree, 1 + method.length / 2), method.length, method.length + 1)
    if isinstance(method, StaticConfig):
        depth = max(map(len, method.tree))
        return Round(min(tree, 1 + depth / 2), depth, len(method.tree) + 1)
    if isinstance(method, EagleConfig):
        return Round(min(tree, 1 + method.depth / 2), method.depth, method.budget)
    if isinstance(method, TalonConfig):
        passes = max(2.0, method.budget / NODES_PER_PASS)
        return Round(min(tree, 1 + passes), passes, method.budget)
    return Round(1.0, 0, 1)


def _curve(dtype: str) -> list[tuple[float, float]]:
    """(nodes, ms) of the reference machine's verification curve; flat where the file is not at hand."""
    file = Path(shipped("results")) / "reference" / f"verify_cost_{dtype}.json"
    if not file.is_file():
        return [(1.0, 1.0)]
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return [(float(row["tokens"]), float(row["ms_median"])) for row in rows]
