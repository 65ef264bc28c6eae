"""What all stages share: the request, the device, the time that is left, and where results go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from talon_bench.drafters.head import DraftHead
from talon_bench.gpu_check.led import LedTarget
from talon_bench.gpu_check.scale import Scale
from talon_bench.schema import Config


@dataclass
class Shape:
    """A target and an EAGLE-3 head of published sizes with random weights."""

    target: LedTarget
    head: DraftHead
    info: dict[str, Any]
    """What run.json says of a run with them, as far as `report` reads it."""


@dataclass
class Context:
    """`embedded` is the run whose losslessness is checked, `shaped` the one whose sizes are filled with random weights."""

    embedded: Config
    shaped: Config
    scale: Scale
    device: torch.device
    keep: Callable[[str, Any], None] = lambda name, value: None
    """Writes a result of the stage that is running."""
    seconds_left: Callable[[], float] = lambda: float("inf")
    """Until the stage that is running should end."""
    provenance: dict[str, Any] = field(default_factory=dict)
    shape: Shape | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"
