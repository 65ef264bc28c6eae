"""Stage "ideas": what docs/engine.md lists to be tried on a GPU: attention kernels, and logits summed in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from talon_bench.doctor.finding import Finding, ok
from talon_bench.gpu_check.build import numbers
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.costs import verification
from talon_bench.gpu_check.timing import interleaved
from talon_bench.shapes import padded_nodes
from talon_bench.target import Target

BACKENDS = {
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "plain": SDPBackend.MATH,
}
NODES = (1, padded_nodes(60))
COMPARED = 4096
"""Tokens whose logits are compared."""


@torch.inference_mode()
def ideas(context: Context) -> list[Finding]:
    """Replayed verifications with each kernel of attention that takes a mask, and the projection in two forms."""
    return [_attention(context), _projection(context)]


def _attention(context: Context) -> Finding:
    """Each kernel has a `Target` of its own on the one model: what is recorded holds the kernel that was chosen then."""
    tokens = max(context.scale.contexts)
    passes: dict[tuple[str, int], Callable[[], object]] = {}
    missing = {}
    for name, backend in BACKENDS.items():
        target = Target(context.shape.target.model, name, static=True)
        target.allocate(tokens + max(NODES))
        target.prefill(numbers(tokens, target.shape.vocab_size))
        try:
            with sdpa_kernel(backend):
                target.prepare(max(NODES), 0)
        except RuntimeError as error:
            missing[name] = _reason(error)
            continue
        passes |= {(name, nodes): verification(target, nodes) for nodes in NODES}
    times = interleaved(passes, context.scale.repeats, context.device, context.seconds_left)
    rows = [{"attention": name, "nodes": nodes, **spent.summary()} for (name, nodes), spent in times.items()]
    context.keep("attention", {"context": tokens, "rows": rows, "missing": missing})
    costs = ", ".join(f"{row['attention']} {row['nodes']}: {row['ms']:.3g}" for row in rows)
    return ok(
        "attention", f"ms of a verification by kernel and nodes behind {tokens} tokens: {costs}{_absent(missing)}"
    )


def _projection(context: Context) -> Finding:
    """Logits as the model gives them, and with `torch.mm(out_dtype=float32)`: time, and error against float32 products."""
    weight = context.shape.target.model.get_output_embeddings().weight
    hidden = torch.randn(max(NODES), weight.shape[1], device=weight.device).to(weight.dtype)
    forms: dict[str, Callable[[], torch.Tensor]] = {
        "as stored": lambda: F.linear(hidden, weight).float(),
        "float32 sums": lambda: torch.mm(hidden, weight.T, out_dtype=torch.float32),
    }
    exact = hidden.float() @ weight[:COMPARED].float().T
    errors = {name: _error(form, exact) for name, form in forms.items()}
    missing = {name: error for name, error in errors.items() if isinstance(error, str)}
    there = {name: form for name, form in forms.items() if name not in missing}
    times = interleaved(there, context.scale.repeats, context.device, context.seconds_left)
    rows = [{"form": name, "error": errors[name], **spent.summary()} for name, spent in times.items()]
    context.keep("projection", {"nodes": max(NODES), "rows": rows, "missing": missing})
    costs = ", ".join(f"{row['form']}: {row['ms']:.3g} ms, error {row['error']:.1g}" for row in rows)
    return ok("logits", costs + _absent(missing))


def _error(form: Callable[[], torch.Tensor], exact: torch.Tensor) -> float | str:
    """Relative error of a form's first columns, or why this device has not got it."""
    try:
        return float((form()[:, :COMPARED] - exact).norm() / exact.norm())
    except (RuntimeError, NotImplementedError) as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0][:120]


def _absent(missing: dict[str, str]) -> str:
    return f"; not here: {', '.join(missing)}" if missing else ""
