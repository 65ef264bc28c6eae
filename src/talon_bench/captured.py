"""Functions over tensors of few shapes, recorded once per shape as CUDA graphs and replayed afterwards.

A host that launches the thousand kernels of a pass one by one needs several milliseconds, at batch 1 often more than the
kernels take; a replay is one call. On a CPU the same static buffers are used and the function itself runs, so that what can
go wrong with buffers goes wrong there too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

WARM_UPS = 2
"""Runs before a recording: libraries choose their kernels and take workspaces in the first ones."""

Key = tuple[Any, ...]
Outputs = tuple[Tensor, ...]


class Captured:
    """`function` with static buffers for its inputs and outputs, and one recording for each shape of its inputs.

    The function takes tensors and, by keyword, hashable settings (a size, say), and returns a tensor or a tuple of tensors.
    What it reads and writes besides must stay at its address, such as a cache that is allocated once. It must not look at
    values of tensors on the host, nor mind being run several times over, as the first call of a shape does.

    All instances on a device share the memory of their intermediate results, so their calls must not overlap.
    """

    def __init__(self, function: Callable[..., Tensor | Outputs], device: torch.device) -> None:
        self._function = function
        self._device = device
        self._slots: dict[Key, _Slot] = {}
        self._outputs: dict[Key, Tensor] = {}
        self._met: set[Key] = set()

    @property
    def shapes(self) -> int:
        """How many keys this instance has ever met: combinations of the inputs' shapes and dtypes and of the settings."""
        return len(self._met)

    @torch.inference_mode()
    def __call__(self, *tensors: Tensor, **settings: Any) -> Tensor | Outputs:
        """The function's result, in tensors that stay valid until the next call of this instance.

        The inputs are copied, from whatever device they are on.
        """
        slot = self._slot(tensors, settings)
        for static, given in zip(slot.inputs, tensors, strict=True):
            static.copy_(given, non_blocking=True)
        slot.run()
        return slot.outputs if slot.several else slot.outputs[0]

    @torch.inference_mode()
    def prepare(self, *tensors: Tensor, **settings: Any) -> None:
        """Record the shape of these inputs where it is new, so that no later call has to; the function runs on them."""
        self._slot(tensors, settings)

    def forget(self) -> None:
        """Drop all recordings: something that they refer to has moved, or the function returns something else now."""
        self._slots.clear()
        self._outputs.clear()

    def _slot(self, tensors: Outputs, settings: dict[str, Any]) -> _Slot:
        key = (*((tensor.shape, tensor.dtype) for tensor in tensors), *sorted(settings.items()))
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = self._record(tensors, settings)
            self._met.add(key)
        return slot

    def _record(self, tensors: Outputs, settings: dict[str, Any]) -> _Slot:
        inputs = tuple(tensor.to(self._device, copy=True) for tensor in tensors)

        def step() -> Tensor | Outputs:
            return self._function(*inputs, **settings)

        if not _is_recorded(self._device):
            first = step()
            outputs = self._buffers(first)
            return _Slot(inputs, outputs, isinstance(first, tuple), lambda: _keep(step(), outputs))
        with torch.cuda.device(self._device):
            pool = _Pool.on(self._device)
            pool.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(pool.stream):
                for _ in range(WARM_UPS):
                    first = step()
            torch.cuda.current_stream().wait_stream(pool.stream)
            # Outside the pool: an older recording may use any memory of the pool that is free now.
            outputs = self._buffers(first)
            several = isinstance(first, tuple)
            del first
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool.handle, pool.stream, capture_error_mode="thread_local"):
                _keep(step(), outputs)
        return _Slot(inputs, outputs, several, graph.replay, pool)

    def _buffers(self, result: Tensor | Outputs) -> Outputs:
        """One buffer for each output; keys with an output of the same shape in the same place share it."""
        buffers = []
        for place, tensor in enumerate(_as_tuple(result)):
            key = (place, tensor.shape, tensor.dtype)
            if key not in self._outputs:
                self._outputs[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
            buffers.append(self._outputs[key])
        return tuple(buffers)


@dataclass(frozen=True)
class _Slot:
    """What belongs to one key."""

    inputs: Outputs
    outputs: Outputs
    several: bool
    """Whether the function returns a tuple."""
    run: Callable[[], Any]
    pool: _Pool | None = None


class _Pool:
    """The stream on which recordings of a device are made, and the memory that they share.

    It lives as long as a recording does: torch does not allow the handle of a pool without graphs to be used again.
    """

    _pools: ClassVar[weakref.WeakValueDictionary[torch.device, _Pool]] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.handle = torch.cuda.graph_pool_handle()

    @classmethod
    def on(cls, device: torch.device) -> _Pool:
        pool = cls._pools.get(device)
        if pool is None:
            pool = cls._pools[device] = cls()
        return pool


def _is_recorded(device: torch.device) -> bool:
    return device.type == "cuda"


def _keep(result: Tensor | Outputs, outputs: Outputs) -> None:
    for static, found in zip(outputs, _as_tuple(result), strict=True):
        static.copy_(found)


def _as_tuple(result: Tensor | Outputs) -> Outputs:
    return result if isinstance(result, tuple) else (result,)
