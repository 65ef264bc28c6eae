"""Stage "machine": which device this is, with its driver and clocks; and its memory after each stage."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import psutil
import torch

from talon_bench import provenance
from talon_bench.doctor.finding import Finding, ok
from talon_bench.doctor.machine import device_and_load, nvidia_smi
from talon_bench.gpu_check.context import Context
from talon_bench.plan.devices import GIB

QUERY = (
    *("driver_version", "pstate", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
    *("temperature.gpu", "power.draw", "power.limit", "persistence_mode"),
)


def machine(context: Context) -> list[Finding]:
    """Provenance as a run records it, what only a GPU has, and the precision of float32 products."""
    context.provenance = provenance.describe(context.device, torch.bfloat16)
    context.keep("provenance", context.provenance)
    context.keep("gpu", gpu_facts(context.device))
    precision = {
        "float32_matmul": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "bfloat16_reduced_sums": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    }
    context.keep("precision", precision)
    read = ok("memory bandwidth", f"a sum reads {context.provenance['read_gb_s']:.0f} GB/s")
    return [*device_and_load(str(context.device)), read]


def gpu_facts(device: torch.device) -> dict[str, Any] | None:
    """What torch and the driver's tool say of a GPU; None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": properties.total_memory / GIB,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nvidia_smi": _nvidia_smi(getattr(properties, "uuid", None)),
    }


def _nvidia_smi(uuid: object) -> dict[str, str] | None:
    """Driver, clocks, temperature and power as nvidia-smi prints them; None where it is not there or fails."""
    which = [] if uuid is None else [f"--id=GPU-{uuid}"]
    rows = nvidia_smi(*which, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader")
    return dict(zip(QUERY, rows[0], strict=False)) if rows else None


def peak_memory(device: torch.device) -> dict[str, float]:
    """GiB: the most that a GPU's allocator gave out and held since `forget_peak`; on a CPU what the process holds now."""
    if device.type != "cuda":
        return {"resident_gib": psutil.Process().memory_info().rss / GIB}
    return {
        "allocated_gib": torch.cuda.max_memory_allocated(device) / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved(device) / GIB,
    }


def forget_peak(device: torch.device) -> None:
    """Give back what nothing refers to any more, and begin a new peak."""
    # A warm-up freezes what it met out of garbage collection (`bench.Bench.warm_up`).
    gc.unfreeze()
    gc.collect()
    if device.type == "cuda":
        # After an error of the device every call raises; the stages say so.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)


def is_lost(device: torch.device) -> bool:
    """Whether the GPU answers nothing any more: an illegal access, say, leaves a process without it."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
