"""Settings of scoring."""

from __future__ import annotations

import math
from dataclasses import dataclass

from talon_bench.errors import UsageError


@dataclass
class ScoringConfig:
    """Whether answers are scored after the run, and the limits of what model-written code and SQL may use."""

    enabled: bool = False
    """Scoring executes code and SQL that a model wrote, in a guarded child process: it must be asked for."""
    timeout_s: float = 10.0
    """Seconds that one answer may run."""
    memory_mb: int = 1024
    """Memory of one answer's process, in MiB."""
    workers: int = 2
    """Answers that run at once."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise UsageError(f"scoring.timeout_s is {self.timeout_s}; give a number of seconds above 0")
        if self.memory_mb < 64:
            raise UsageError(f"scoring.memory_mb is {self.memory_mb}; give 64 or more")
        if self.workers < 1:
            raise UsageError(f"scoring.workers is {self.workers}; give 1 or more")
