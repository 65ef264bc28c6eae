"""Options of `talon-bench doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from talon_bench.doctor.prompts import PROMPTS
from talon_bench.errors import UsageError

# OmegaConf reads annotations at run time and needs typing.Optional on Python 3.10.
# ruff: noqa: UP045


@dataclass
class DoctorConfig:
    """Written `doctor.NAME=VALUE` on the command line."""

    min_mat: float = 1.3
    """Floor of a head's MAT in chains of `probe.CHAIN`; a head of another target scores about 1."""
    prompts: int = len(PROMPTS)
    """How many of the built-in prompts are asked."""
    tokens: int = 48
    """New tokens of an answer."""
    out: Optional[str] = None
    """File for the verdict, such as doctor.json in a run's folder; null: on stdout only."""

    def __post_init__(self) -> None:
        if not self.min_mat >= 1:
            raise UsageError(f"doctor.min_mat is {self.min_mat}; give 1 or more, as every verification emits a token")
        if not 1 <= self.prompts <= len(PROMPTS):
            raise UsageError(f"doctor.prompts is {self.prompts}; give 1 to {len(PROMPTS)}")
        if self.tokens < 2:
            raise UsageError(f"doctor.tokens is {self.tokens}; give 2 or more, as the first comes from the prefill")
