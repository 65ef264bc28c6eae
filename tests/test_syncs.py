"""How often the host waits for the device while decoding, counted on the CPU as it would be on a GPU.

What waits there leaves a mark here too: reading a number, a result whose size depends on values, and a tensor made from
Python numbers, which on a GPU is an upload from pageable memory. `transfer.to_device` is the way around the last one, and
`sampling.uniform` reads a number that is drawn on the host.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import talon_bench
from stock_reference import PROMPT
from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.drafters.base import Drafter, NoDrafter
from talon_bench.drafters.static_session import StaticHeadDrafter
from talon_bench.policies import Eagle, Static, Talon, chain
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from talon_bench.transfer import to_device

PACKAGE = str(Path(talon_bench.__file__).parent)
ON_THE_HOST = {"transfer.to_device", "sampling.uniform"}
READS = ("_local_scalar_dense", "is_nonzero", "equal", "item", "allclose")
SIZED_BY_VALUES = (
    *("nonzero", "nonzero_numpy", "masked_select", "unique_dim", "_unique2", "unique_consecutive", "bincount"),
    *("repeat_interleave", "one_hot", "histc"),
)


class Waits(TorchDispatchMode):
    """Counts waits by the function of this package (file.function) that asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __enter__(self) -> Waits:
        self._calls = _Calls(self.note)
        self._calls.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._calls.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        sized = name in SIZED_BY_VALUES and kwargs.get("output_size") is None
        if name in READS or sized or name == "lift_fresh" or (name.startswith("index") and _has_bool(args[1:2])):
            self.note()
        return func(*args, **kwargs)

    def note(self) -> None:
        asked = _asked_by()
        if asked not in ON_THE_HOST:
            self.found[asked] += 1


class _Calls(TorchFunctionMode):
    """What a CPU tensor answers without an operator: lists of its numbers, and indexing by lists."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        by_list = name in ("__getitem__", "__setitem__") and _has_list(args[1])
        if name in ("tolist", "numpy", "cpu", "__array__") or by_list:
            self._note()
        return func(*args, **(kwargs or {}))


def _has_list(index: object) -> bool:
    return any(isinstance(part, list) for part in (index if isinstance(index, tuple) else (index,)))


def _has_bool(indices: tuple) -> bool:
    tensors = [part for given in indices for part in (given if isinstance(given, list | tuple) else [given])]
    return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in tensors)


def _asked_by() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            return f"{Path(code.co_filename).stem}.{code.co_name}"
        frame = frame.f_back
    return "test"


NUMBERS = torch.arange(6.0)
ASKING = {
    "item": lambda t: t[0].item(),
    "int": lambda t: int(t[1]),
    "bool": lambda t: bool((t > 2).any()),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "cpu": lambda t: t.cpu(),
    "nonzero": lambda t: (t > 2).nonzero(),
    "mask": lambda t: t[t > 2],
    "set by mask": lambda t: t.clone().__setitem__(t > 2, 0.0),
    "masked_select": lambda t: t.masked_select(t > 2),
    "where": lambda t: torch.where(t > 2),
    "list index": lambda t: t[[0, 3]],
    "set by list": lambda t: t.clone().__setitem__([0, 3], 1.0),
    "torch.tensor": lambda t: torch.tensor([1, 2]),
    "unique": lambda t: t.unique(),
    "bincount": lambda t: torch.bincount(t.long()),
    "repeats": lambda t: t.repeat_interleave(t.long()),
}
NOT_ASKING = {
    "topk": lambda t: t.topk(2),
    "sort": lambda t: t.sort(stable=True),
    "index": lambda t: t[t.long()],
    "set by index": lambda t: t.clone().__setitem__(t.long(), t),
    "slice": lambda t: t[1:3].fill_(2.0),
    "masked_fill": lambda t: t.masked_fill(t > 2, 0.0),
    "searchsorted": lambda t: torch.searchsorted(t, t),
    "full": lambda t: torch.full((1,), 7),
    "arange": lambda t: torch.arange(4),
    "where of three": lambda t: torch.where(t > 2, t, 0.0),
    "to_device": lambda t: to_device([1, 2], t.device),
}


@pytest.mark.parametrize("name", ASKING)
def test_the_counter_sees_what_waits(name: str) -> None:
    numbers = NUMBERS.clone()
    with Waits() as waits:
        ASKING[name](numbers)
    assert sum(waits.found.values()) >= 1


@pytest.mark.parametrize("name", NOT_ASKING)
def test_the_counter_overlooks_what_does_not_wait(name: str) -> None:
    numbers = NUMBERS.clone()
    with Waits() as waits:
        NOT_ASKING[name](numbers)
    assert waits.found == {}


STATIC = Static([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
METHODS = {
    "ar": lambda target, head: NoDrafter(target.device),
    "eagle1": lambda target, head: StaticHeadDrafter(head("eagle"), STATIC),
    "eagle2": lambda target, head: StaticHeadDrafter(head("eagle"), Eagle(16, depth=4, top_k=5)),
    "eagle3": lambda target, head: StaticHeadDrafter(head("eagle3"), Eagle(16, depth=4, top_k=5)),
    "talon": lambda target, head: StaticHeadDrafter(head("eagle3"), Talon(24, root_top_k=5)),
    "talon, eagle2": lambda target, head: StaticHeadDrafter(head("eagle"), Talon(24, root_top_k=5, alpha=0.3)),
    "talon, 2 plain layers": lambda target, head: StaticHeadDrafter(head("eagle3"), Talon(24, 5, init_layers=2)),
    "chain": lambda target, head: StaticHeadDrafter(head("eagle3"), chain(3)),
}
ACCEPTS = {"greedy": (Sampler(), "verify.accept_greedy"), "sampling": (Sampler(1.0, 0.9), "verify._sample_at_once")}


@pytest.fixture(scope="module")
def target(stock: Callable[..., torch.nn.Module]) -> Target:
    return Target.wrap(stock("llama"), "llama", static=True)


@pytest.mark.parametrize("rule", ACCEPTS)
@pytest.mark.parametrize("name", METHODS)
def test_one_wait_a_verification_and_one_a_gated_layer(name: str, rule: str, target: Target, toy_head) -> None:
    drafter = METHODS[name](target, lambda kind: toy_head(target, kind))
    sampler, accepting = ACCEPTS[rule]
    plain = getattr(getattr(drafter, "_policy", None), "init_layers", None)
    found = waits_by_round(target, drafter, sampler)
    assert len(found) > 5
    for layers, waits in found[1:]:
        gated = {} if plain is None or layers <= plain else {"talon._gate_queued": layers - plain}
        assert waits == {accepting: 1, **gated}


def waits_by_round(target: Target, drafter: Drafter, sampler: Sampler) -> list[tuple[int, Counter[str]]]:
    """(layers of its tree, waits) of each round; the first has the prompt's too."""
    rounds = decode(
        target,
        drafter,
        PROMPT,
        Answer(frozenset(), 60),
        sampler=sampler,
        generator=torch.Generator().manual_seed(1),
        clock=PhaseClock(),
    )
    found = []
    while True:
        with Waits() as waits:
            round_ = next(rounds, None)
        if round_ is None:
            return found
        found.append((round_.tree.num_layers, waits.found))
