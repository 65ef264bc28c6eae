"""The devices that a plan is made for: how much memory they give to a program, and how fast they read it."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

GIB = 2**30
GPUS = {
    "H200": (139.8, 4800),
    "H100-80": (79.1, 3350),
    "A100-80": (79.2, 2039),
    "A100-40": (39.4, 1555),
    "L40S": (44.4, 864),
    "RTX4090": (23.5, 1008),
}
"""(GiB that torch can use, GB/s of memory bandwidth as in NVIDIA's data sheets): the SXM form where there are several."""

CPU_GBPS = 24
"""Read bandwidth of two cores of the server CPU on which results/reference was measured."""

UNKNOWN_GBPS = 1000
"""For a GPU that is here and not in `GPUS`."""


@dataclass(frozen=True)
class Device:
    """`memory` in bytes: of one GPU, or of the machine. `bandwidth` in bytes/s."""

    name: str
    kind: str
    memory: int
    bandwidth: float


def resolve(gpu: str | None, wanted: str) -> Device:
    """The device of `plan.gpu`; without it that of `launch.device` (`wanted`) on this machine."""
    if gpu in GPUS:
        gib, gbps = GPUS[gpu]
        return Device(gpu, "cuda", int(gib * GIB), gbps * 1e9)
    if gpu is None and wanted != "cpu" and torch.cuda.is_available():
        return _present(torch.device(wanted if wanted != "auto" else "cuda"))
    return Device("this CPU", "cpu", psutil.virtual_memory().total, CPU_GBPS * 1e9)


def _present(device: torch.device) -> Device:
    """The GPU that is here; its bandwidth by name and size ("A100-SXM4-40GB" is an A100-40)."""
    properties = torch.cuda.get_device_properties(device)
    memory = properties.total_memory
    return Device(properties.name, "cuda", memory, bandwidth_of(properties.name, memory))


def bandwidth_of(name: str, memory: int) -> float:
    """Bytes/s of the GPU of this driver's name with about this much memory."""
    fits = [
        (abs(gib * GIB - memory), gbps)
        for key, (gib, gbps) in GPUS.items()
        if key.partition("-")[0].replace("RTX", "RTX ") in name
    ]
    return min(fits, default=(0, UNKNOWN_GBPS))[1] * 1e9


def visible() -> int:
    """GPUs that torch can use here, at least 1: for a plan made where there is none."""
    return max(torch.cuda.device_count(), 1)
