"""Options of `talon-bench gpu-check`."""

from __future__ import annotations

from dataclasses import dataclass

from talon_bench.checks import one_of
from talon_bench.errors import UsageError

LEAST_SECONDS = 10


@dataclass
class GpuCheckConfig:
    """Written `gpu_check.NAME=VALUE` on the command line."""

    out: str = "results/local/gpu_check.json"
    """File for the results; one that is there already stays, and a number is added to the name."""
    seconds: int = 480
    """Time for all stages together; what does not fit is left out, the last stages first."""
    scale: str = "auto"
    """full, or tiny: the same code on shapes that a CPU does in seconds; auto: full on a GPU, tiny on a CPU."""
    shape: str = "llama31_8b"
    """The target of conf/target whose sizes are filled with random weights."""

    def __post_init__(self) -> None:
        one_of("gpu_check.scale", self.scale, ("auto", "full", "tiny"))
        if self.seconds < LEAST_SECONDS:
            raise UsageError(f"gpu_check.seconds is {self.seconds}; give {LEAST_SECONDS} or more")
