"""Phase timing: every moment of a decode belongs to exactly one phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class PhaseClock:
    """Attributes the time since the last call to a named phase, in milliseconds, on a monotonic clock."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._last = time.perf_counter()

    @classmethod
    def on(cls, device: torch.device) -> PhaseClock:
        """The clock for work on this device."""
        return EventClock.of(device) if device.type == "cuda" else PhaseClock()

    def restart(self) -> None:
        """Forget the time since the last call: it belongs to no phase (recording, reporting)."""
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Charge the time since the last call to `phase`."""
        now = time.perf_counter()
        self._spent[phase] = self._spent.get(phase, 0.0) + (now - self._last) * 1e3
        self._last = now

    def take(self) -> dict[str, float]:
        """Milliseconds per phase since the last `take`, and start afresh."""
        spent, self._spent = self._spent, {}
        return spent


class EventClock(PhaseClock):
    """The same on a GPU, without waiting for it at every lap.

    A lap leaves an event in the device's queue. The device is waited for once for all laps since a restart, by `take` or the
    next restart: then each lap gets the device's time since the one before, and the last lap (in a round of decoding that
    is "other") what is left of the wall time, so that the phases add up to it.
    """

    def __init__(self, make_event: Callable[[], Any], stream: Any) -> None:
        """make_event: a new timing event, such as torch.cuda.Event; stream: what it is recorded in."""
        super().__init__()
        self._make_event = make_event
        self._stream = stream
        self._events: list[Any] = []
        self._phases: list[str] = []  # phase i lies between events i and i + 1
        self._mark()

    @classmethod
    def of(cls, device: torch.device) -> EventClock:
        return cls(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.current_stream(device))

    def restart(self) -> None:
        self._settle()
        self._stream.synchronize()  # what the caller queued in between is not the next lap's
        super().restart()
        self._mark()

    def lap(self, phase: str) -> None:
        self._phases.append(phase)
        self._mark()

    def take(self) -> dict[str, float]:
        self._settle()
        return super().take()

    def _mark(self) -> None:
        """Record the event that ends the newest phase; events are used again after each settlement."""
        number = len(self._phases)
        if number == len(self._events):
            self._events.append(self._make_event())
        self._events[number].record(self._stream)

    def _settle(self) -> None:
        """Wait for the laps since the restart and charge them."""
        if not self._phases:
            return
        self._events[len(self._phases)].synchronize()
        now = time.perf_counter()
        left = (now - self._last) * 1e3
        for number, phase in enumerate(self._phases[:-1]):
            ms = self._events[number].elapsed_time(self._events[number + 1])
            self._spent[phase] = self._spent.get(phase, 0.0) + ms
            left -= ms
        self._spent[self._phases[-1]] = self._spent.get(self._phases[-1], 0.0) + left
        self._last = now
        self._phases.clear()
        self._mark()
