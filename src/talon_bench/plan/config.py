"""Options of `talon-bench plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from talon_bench.errors import UsageError
from talon_bench.plan.devices import GPUS

# OmegaConf reads annotations at run time and needs typing.Optional on Python 3.10.
# ruff: noqa: UP045


@dataclass
class PlanConfig:
    """Written `plan.NAME=VALUE` on the command line."""

    gpu: Optional[str] = None
    """A name of `devices.GPUS`, or cpu; null: the GPU that is here, else this machine's CPU."""
    gpus: Optional[int] = None
    """GPUs that a job's target is spread over; null: what launch.shard says."""
    answer_tokens: Optional[int] = None
    """New tokens of an average answer, for the time; null: the cap, so that the time is an upper bound."""
    check_hub: bool = False
    """Ask the hub for file sizes and licences instead of trusting conf/."""

    def __post_init__(self) -> None:
        if self.gpu not in (None, "cpu", *GPUS):
            raise UsageError(f"plan.gpu is {self.gpu}; expected one of {', '.join(GPUS)}, cpu, or null")
        if self.gpus is not None and self.gpus < 1:
            raise UsageError(f"plan.gpus is {self.gpus}; give 1 or more")
        if self.gpu == "cpu" and (self.gpus or 1) > 1:
            raise UsageError(
                f"plan.gpus is {self.gpus} with plan.gpu=cpu; a CPU run uses one machine, leave plan.gpus out"
            )
        if self.answer_tokens is not None and self.answer_tokens < 1:
            raise UsageError(f"plan.answer_tokens is {self.answer_tokens}; give 1 or more, or null for the cap")
