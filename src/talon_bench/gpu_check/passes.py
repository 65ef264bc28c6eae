"""Stage "passes": what is replayed from recordings, against the same function called, the eager engine, and a CPU.

A small random model in float32 and bfloat16; target verification in every bucket of nodes, and both kinds of draft head with
catch-up and expansion passes of every width, over several windows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from talon_bench import captured
from talon_bench.clock import PhaseClock
from talon_bench.doctor.finding import Finding, fault, ok
from talon_bench.drafters.session import HeadDrafter
from talon_bench.drafters.static_session import StaticHeadDrafter
from talon_bench.gpu_check.build import CPU, numbers, random_head, random_target, random_tree
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.scale import SMALL, SMALL_DRAFT_VOCAB
from talon_bench.policies import Draft
from talon_bench.shapes import NODES
from talon_bench.target import Target
from talon_bench.tree import TokenTree, root_only

PROMPT = 20
SECOND_LAYER = 8
TOLERANCE = {"float32": 5e-5, "bfloat16": 0.05}
"""Relative error (Euclidean norms) that the order of sums explains in eight layers. TF32 shows ten times as much."""

Results = dict[str, Tensor]


@dataclass
class Walk:
    """A policy that asks for a layer of `width` nodes and one below it, and keeps the distributions that it is given."""

    width: int = 1
    found: list[Tensor] = field(default_factory=list)
    budget: int = 1
    max_fed: int = max(NODES) + SECOND_LAYER
    max_depth: int = max(NODES) - 1
    fed_widths: tuple[int, ...] = NODES

    def grow(self, draft: Draft) -> TokenTree:
        generator = torch.Generator().manual_seed(self.width)
        log_probs = draft.root_log_probs()
        self.found.append(log_probs.clone())
        fed = 0
        for width in (self.width, min(self.width, SECOND_LAYER)):
            tokens = torch.randint(SMALL.vocab_size, (width,), generator=generator)
            parents = torch.randint(fed, (width,), generator=generator) if fed else torch.full((width,), -1)
            self.found.append(draft.expand(tokens.to(log_probs.device), parents.to(log_probs.device)).clone())
            fed += width
        return root_only(draft.root, log_probs.device)


def passes(context: Context) -> list[Finding]:
    """Compare all forms; the largest relative errors are kept for each kind of pass."""
    findings = []
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        with called():
            reference = all_passes(context.device, dtype, static=True)
        others = {"recorded and called": all_passes(context.device, dtype, static=True)}
        if dtype is torch.float32:
            others["static and eager"] = all_passes(context.device, dtype, static=False)
            others["device and CPU"] = all_passes(CPU, dtype, static=True)
        for pair, found in others.items():
            errors = {key: _error(found[key], reference[key]) for key in reference}
            exact = sum(torch.equal(found[key].cpu(), reference[key].cpu()) for key in reference)
            context.keep(f"{name}, {pair}", {"errors": errors, "equal": exact, "compared": len(errors)})
            findings.append(_finding(f"{name}: {pair}", errors, exact, TOLERANCE[name], context.on_gpu))
    return findings


@contextlib.contextmanager
def called() -> Iterator[None]:
    """While this is open, new shapes are not recorded: their function is called each time, as on a CPU."""
    recorded = captured._is_recorded
    captured._is_recorded = lambda device: False
    try:
        yield
    finally:
        captured._is_recorded = recorded


@torch.inference_mode()
def all_passes(device: torch.device, dtype: torch.dtype, *, static: bool) -> Results:
    """Results of every kind of pass by its name; alike up to rounding wherever and however they are computed."""
    target = random_target(SMALL, device, dtype, static=static, made_on=CPU)
    layers = target.shape.default_feature_layers
    target.tap(layers)
    found = _verifications(target, layers)
    for kind in ("eagle2", "eagle3"):
        found |= _drafts(target, kind, static)
    return found


def _verifications(target: Target, layers: tuple[int, ...]) -> Results:
    """Logits and features of a tree of each size, and the logits after its path was committed."""
    prompt = numbers(PROMPT, target.shape.vocab_size)
    found = {}
    for nodes in NODES:
        tree, path = random_tree(nodes, target.shape.vocab_size, target.device, seed=nodes)
        target.allocate(PROMPT + 2 * max(NODES))
        target.prefill(prompt)
        logits = target.verify(tree.tokens, tree.depths, tree.ancestor_mask() if nodes > 1 else None)
        found[f"verify {nodes}"] = logits.clone()
        found[f"features {nodes}"] = target.features(layers, torch.arange(nodes, device=target.device))
        target.commit(path)
        found[f"verify after {nodes}"] = target.verify(tree.tokens[:1], tree.depths[:1], None).clone()
    return found


def _drafts(target: Target, kind: str, static: bool) -> Results:
    """Log-probabilities of both kinds of draft pass in each width, behind a cache that grows through several windows."""
    head = random_head(target, kind, SMALL_DRAFT_VOCAB, made_on=CPU)
    walk = Walk()
    drafter = (StaticHeadDrafter if static else HeadDrafter)(head, walk)
    generator = torch.Generator().manual_seed(0)
    found = {}
    drafter.start([0] * PROMPT, PROMPT + sum(NODES))
    for number, width in enumerate((PROMPT, *NODES)):
        features = torch.randn(width, head.feature_width, generator=generator).to(target.device, target.dtype)
        drafter.observe(numbers(width, target.shape.vocab_size), features)
        walk.width, walk.found = width if number else 1, []
        drafter.propose(1, PhaseClock())
        names = ("catch-up", "expansion", "second expansion")
        where = width if number else "prompt"
        found |= {f"{kind} {name} {where}": rows for name, rows in zip(names, walk.found, strict=True)}
    return found


def _error(found: Tensor, reference: Tensor) -> float:
    found, reference = found.double().cpu(), reference.double().cpu()
    return float((found - reference).norm() / reference.norm())


def _finding(subject: str, errors: dict[str, float], exact: int, tolerance: float, on_gpu: bool) -> Finding:
    worst = max(errors, key=lambda key: errors[key] if errors[key] == errors[key] else float("inf"))
    where = f"largest relative error {errors[worst]:.2g} ({worst})"
    text = f"{exact} of {len(errors)} results equal bit for bit, {where}" + ("" if on_gpu else "; not on a GPU")
    if errors[worst] <= tolerance:
        return ok(subject, text)
    return fault(subject, text, f"at most {tolerance:g}", "do not trust this engine here: run launch.engine=eager")
