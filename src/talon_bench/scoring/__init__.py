"""Scoring: how good the recorded answers are, off the clock and only when asked for.

base      an answer, its score, and what a scorer is
gsm8k, humaneval, mbpp, spider   one data set's scorer each, `make_scorer(config, root)` in every one
thinking  what of an output is the answer, where a model thinks first
run       scores of a run folder: scores.parquet and scores.json

Code and SQL that a model wrote run in guarded child processes only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from talon_bench.scoring.base import Answer, Score, Scorer
from talon_bench.scoring.config import ScoringConfig

__all__ = ["SCORERS", "Answer", "Score", "Scorer", "ScoringConfig"]


def _make(module: str, config: ScoringConfig, root: Path | None) -> Scorer:
    """Imported on use, so that a run without scoring loads no parser and no sandbox."""
    return importlib.import_module(f"talon_bench.scoring.{module}").make_scorer(config, root)


SCORERS: dict[str, Callable[[ScoringConfig, Path | None], Scorer]] = {
    name: partial(_make, name) for name in ("gsm8k", "humaneval", "mbpp", "spider")
}
"""Scorers by DatasetConfig.loader. The second argument is the data root (None without one), where Spider's databases lie."""
