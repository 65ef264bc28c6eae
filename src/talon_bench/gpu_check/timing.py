"""The one loop that times passes: all of them in turn, many times over, so that drift of the machine meets all alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from talon_bench import stats
from talon_bench.clock import PhaseClock


@dataclass
class Times:
    """Milliseconds of each repetition: of the device (on a CPU the wall), and until the host was free again."""

    device: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Medians, that of the device with its interval, and how many repetitions they come from."""
        ms = stats.median(self.device)
        return {
            "ms": ms.value,
            "ms_low": ms.low,
            "ms_high": ms.high,
            "host_ms": float(np.median(self.host)),
            "repeats": len(self.device),
        }


def interleaved(
    passes: Mapping[Hashable, Callable[[], object]],
    repeats: int,
    device: torch.device,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> dict[Hashable, Times]:
    """Times of each of `passes`, `repeats` of them or as many as the time allows, at least one; a first one warms up."""
    clock = PhaseClock.on(device)
    found = {name: Times() for name in passes}
    for repeat in range(repeats + 1):
        if repeat > 1 and seconds_left() <= 0:
            break
        for name, run in passes.items():
            clock.restart()
            start = time.perf_counter()
            run()
            host = (time.perf_counter() - start) * 1e3
            clock.lap("pass")
            clock.lap("rest")
            ms = clock.take()["pass"]
            if repeat > 0:
                found[name].device.append(ms)
                found[name].host.append(host)
    return found
