"""Stages "verify" and "draft": what single passes of the random target and head cost, by tree size and by width."""

from __future__ import annotations

from collections.abc import Callable

import torch

from talon_bench.doctor.finding import Finding, ok
from talon_bench.gpu_check.build import numbers
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.timing import Times, interleaved
from talon_bench.policies import Talon
from talon_bench.report.roofline import PassBytes, head_bytes, target_bytes
from talon_bench.shapes import NODES, node_sizes
from talon_bench.target import Target

EAGER = (1, 64)
"""Sizes that are timed with every kernel launched by itself as well."""
POLICY = Talon(60)
"""Whose draft passes are timed: they have every width that the papers' settings need."""
CATCH_UPS = (1, 8, 16)


@torch.inference_mode()
def verify_costs(context: Context) -> list[Finding]:
    """Verification by tree size and context, replayed and launched kernel by kernel."""
    target, info = context.shape.target, context.shape.info
    rows: list[dict] = []
    for tokens in context.scale.contexts:
        target.allocate(tokens + max(NODES))
        target.prefill(numbers(tokens, target.shape.vocab_size))
        target.prepare(max(NODES), 0)
        passes = {("static", nodes): verification(target, nodes) for nodes in NODES}
        passes |= {("eager", nodes): verification(target, nodes, eager=True) for nodes in EAGER}
        times = interleaved(passes, context.scale.repeats, context.device, context.seconds_left)
        rows += [
            {"context": tokens, "form": form, "nodes": nodes, **_costs(context, spent, target_bytes(info), tokens)}
            for (form, nodes), spent in times.items()
        ]
        context.keep("passes", rows)
    return [ok("verification", _line(rows, "form", "static", "nodes"))]


@torch.inference_mode()
def draft_costs(context: Context) -> list[Finding]:
    """Draft passes by kind and width."""
    head, info = context.shape.head, context.shape.info
    passes_of, rows = head.static_passes, []
    bytes_read = head_bytes(info, "eagle3")
    first = PassBytes(bytes_read.weights + bytes_read.first, bytes_read.row)
    for tokens in context.scale.contexts:
        passes_of.reserve(tokens + max(CATCH_UPS), POLICY)
        passes_of.prepare(POLICY, tokens, tokens + max(CATCH_UPS))
        passes_of.begin(tokens, torch.zeros(1, head.spec.hidden_size, dtype=head.dtype, device=head.device))
        passes = {("catch-up", width): _catch_up(context, tokens, width) for width in CATCH_UPS}
        passes |= {("expansion", width): _expansion(context, width) for width in node_sizes(POLICY.max_fed)}
        times = interleaved(passes, context.scale.repeats, context.device, context.seconds_left)
        rows += [
            {
                "context": tokens,
                "kind": kind,
                "width": width,
                **_costs(context, spent, first if kind == "catch-up" else bytes_read, tokens),
            }
            for (kind, width), spent in times.items()
        ]
        context.keep("passes", rows)
    return [ok("draft passes", _line(rows, "kind", "expansion", "width"))]


def verification(target: Target, nodes: int, *, eager: bool = False) -> Callable[[], object]:
    """A pass over a chain of nodes behind what is committed."""
    depths = torch.arange(nodes, device=target.device)
    visible = torch.ones(nodes, nodes, dtype=torch.bool, device=target.device).tril() if nodes > 1 else None
    tokens = depths % target.shape.vocab_size
    return lambda: target.verify(tokens, depths, visible, eager)


def _catch_up(context: Context, committed: int, width: int) -> Callable[[], object]:
    head = context.shape.head
    features = [torch.zeros(width, head.feature_width, dtype=head.dtype, device=head.device)]
    return lambda: head.static_passes.catch_up(committed, [1] * width, features)


def _expansion(context: Context, width: int) -> Callable[[], object]:
    head = context.shape.head
    tokens = torch.arange(min(width, POLICY.max_fed), device=head.device)
    return lambda: head.static_passes.expand(tokens, torch.full_like(tokens, -1), 0, 0)


def _costs(context: Context, times: Times, read: PassBytes, tokens: int) -> dict:
    """Times, the bytes that a pass must read, and the share of the memory's bandwidth that this is."""
    found = times.summary()
    gb = (read.weights + read.row * tokens) / 1e9
    return {**found, "GB": gb, "share": gb / found["ms"] * 1e3 / context.provenance["read_gb_s"]}


def _line(rows: list[dict], column: str, value: str, size: str) -> str:
    """The costs behind the shortest context, for the terminal."""
    first = [row for row in rows if row[column] == value and row["context"] == rows[0]["context"]]
    costs = ", ".join(f"{row[size]}: {row['ms']:.3g}" for row in first)
    return f"ms by {size} behind {rows[0]['context']} tokens ({value}): {costs}"
