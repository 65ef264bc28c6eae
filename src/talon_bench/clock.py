"""Phase timing: every moment of a decode belongs to exactly one phase."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class PhaseClock:
    """Attributes the time since the last call to a named phase, in milliseconds, on a monotonic clock.

    `synchronise` is called before each reading, so that work queued on an accelerator is charged to its own phase.
    """

    def __init__(self, synchronise: Callable[[], None] | None = None) -> None:
        self._synchronise = synchronise
        self._spent: dict[str, float] = {}
        self._last = time.perf_counter()

    @classmethod
    def on(cls, device: torch.device) -> PhaseClock:
        return cls((lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None)

    def restart(self) -> None:
        """Forget the time since the last call: it belongs to no phase (recording, reporting)."""
        if self._synchronise:
            self._synchronise()
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Charge the time since the last call to `phase`."""
        if self._synchronise:
            self._synchronise()
        now = time.perf_counter()
        self._spent[phase] = self._spent.get(phase, 0.0) + (now - self._last) * 1e3
        self._last = now

    def take(self) -> dict[str, float]:
        """Milliseconds per phase since the last `take`, and start afresh."""
        spent, self._spent = self._spent, {}
        return spent
