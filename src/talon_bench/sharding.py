"""Targets larger than one GPU: whole layers on several, by an accelerate device map. Which layer is where."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from talon_bench.errors import UsageError


def device_map(shard: str, device: torch.device) -> dict[str, Any]:
    """Arguments of `from_pretrained` for `launch.shard`: none; auto, over all visible GPUs; or N, over the first N.

    UsageError where the run's device is no GPU, or where fewer than N are there.
    """
    if shard == "none":
        return {}
    found = torch.cuda.device_count()
    if device.type != "cuda":
        raise UsageError(
            f"launch.shard is {shard} and launch.device {device}; sharding needs GPUs, set launch.shard=none"
        )
    if shard == "auto":
        shard = str(found)
    if int(shard) > found:
        raise UsageError(f"launch.shard is {shard}; this machine has {found} GPUs that torch can use")
    return {"device_map": "auto", "max_memory": _whole(int(shard))}


def refuse_offloaded(model: nn.Module, name: str) -> None:
    """UsageError where parts of a sharded model did not fit on the GPUs: every pass would wait for the host's memory."""
    left = [module for module, place in getattr(model, "hf_device_map", {}).items() if place in ("cpu", "disk")]
    if left:
        raise UsageError(
            f"target {name}: {len(left)} of its modules, the first {left[0]}, do not fit on the GPUs;"
            " give it more of them (launch.shard) or a smaller target"
        )


def layer_devices(decoder: nn.Module, default: torch.device) -> list[torch.device]:
    """The device that each decoder layer computes on; `default` for layers without parameters of their own (fused ones)."""
    return [_computes_on(layer, default) for layer in decoder.layers]


def _computes_on(layer: nn.Module, default: torch.device) -> torch.device:
    """Where accelerate brings the inputs of a layer, if it does; where its weights are otherwise."""
    device = getattr(getattr(layer, "_hf_hook", None), "execution_device", None)
    if device is None:
        parameter = next(layer.parameters(), None)
        return default if parameter is None else parameter.device
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _whole(gpus: int) -> dict[int, int]:
    """max_memory that names these GPUs, each with what it has free, less a tenth for caches and activations."""
    return {number: int(0.9 * torch.cuda.mem_get_info(number)[0]) for number in range(gpus)}
