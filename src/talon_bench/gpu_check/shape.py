"""Stage "shape": a target of published sizes and its EAGLE-3 head, filled with random weights on the device."""

from __future__ import annotations

import time
from dataclasses import asdict

import psutil
import torch

from talon_bench.doctor.finding import Finding, ok
from talon_bench.errors import UsageError
from talon_bench.gpu_check.build import SHARPNESS, random_head, random_target
from talon_bench.gpu_check.context import Context, Shape
from talon_bench.gpu_check.led import LedTarget
from talon_bench.lineup import resolve
from talon_bench.plan.memory import CUDA_CONTEXT
from talon_bench.plan.show import gib
from talon_bench.plan.sizes import DTYPE_BYTES, head_parameters, target_size
from talon_bench.schema import ArchitectureConfig
from talon_bench.shapes import NODES

DTYPE = torch.bfloat16


def build_shape(context: Context) -> list[Finding]:
    """Make both, keep their sizes, and say how long it took. UsageError where they do not fit into what is free."""
    config, scale = context.shaped, context.scale
    architecture = scale.architecture(config.target.architecture)
    draft_vocab = scale.draft_vocab(config.head["eagle3"].draft_vocab, architecture.vocab_size)
    _refuse_too_large(context, architecture, draft_vocab)
    start = time.perf_counter()
    target = random_target(architecture, context.device, DTYPE, name=config.target.name, wrapper=LedTarget)
    head = random_head(target, "eagle3", draft_vocab, name="random", sharpness=SHARPNESS)
    # At once as large as any stage needs: what is recorded would be dropped when the cache grows.
    target.allocate(max(*scale.contexts, scale.prompt_tokens + scale.new_tokens) + 2 * max(NODES))
    facts = {
        "architecture": asdict(architecture),
        "parameters": target_size(architecture).total,
        "head_parameters": head_parameters("eagle3", architecture, draft_vocab),
        "draft_vocab": draft_vocab,
        "feature_layers": list(head.spec.feature_layers),
        "sharpness": SHARPNESS,
        "pass_bytes": {"weights": target.weight_bytes, "row": target.row_bytes},
        "seconds": time.perf_counter() - start,
    }
    dtype = str(DTYPE).removeprefix("torch.")
    context.keep("facts", {"target": config.target.name, "dtype": dtype, **facts})
    context.shape = Shape(target, head, _info(context, target, head, dtype))
    size = f"{facts['parameters'] / 1e9:.3g} and {facts['head_parameters'] / 1e9:.3g} billion parameters"
    return [ok("sizes", f"{config.target.name} and its EAGLE-3 head, {size}, {dtype}, random weights")]


def _refuse_too_large(context: Context, architecture: ArchitectureConfig, draft_vocab: int) -> None:
    item = DTYPE_BYTES[str(DTYPE).removeprefix("torch.")]
    head = head_parameters("eagle3", architecture, draft_vocab)
    # The head is made in float32, twice over, before it becomes what it is.
    need = target_size(architecture).total * item + head * (item + 2 * DTYPE_BYTES["float32"])
    free = psutil.virtual_memory().available
    if context.on_gpu:
        need += CUDA_CONTEXT
        free = torch.cuda.mem_get_info(context.device)[0]
    if need > free:
        raise UsageError(
            f"{context.shaped.target.name} with its head needs {gib(need)} GiB, {gib(free)} GiB are free;"
            " use a larger GPU, or gpu_check.scale=tiny"
        )


def _info(context: Context, target: LedTarget, head: object, dtype: str) -> dict:
    """What `report` reads of a run with them."""
    methods, _ = resolve(context.shaped)
    return {
        "target": target.name,
        "dataset": {"name": "random prompts"},
        "methods": {method.name: method.settings() for method in methods},
        "heads": {"eagle3": {"name": head.name, **asdict(head.spec)}},
        "decode": {"temperature": 0.0, "max_new_tokens": context.scale.new_tokens},
        "checkpoint": {
            "dtype": dtype,
            "engine": "stock",
            "pass_bytes": {"weights": target.weight_bytes, "row": target.row_bytes},
        },
        "provenance": context.provenance,
    }
