"""Where a run's progress and results are shown beside its folder: nowhere, or Weights & Biases (docs/tracking.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from talon_bench.tracking.null import NullTracker

if TYPE_CHECKING:
    from talon_bench.schema import TrackingConfig


def make_tracker(config: TrackingConfig) -> NullTracker:
    """The tracker that the config asks for; wandb is imported only here and only on request.

    Made before anything is loaded: UsageError where wandb is asked for and not installed.
    """
    if config.kind == "none" or config.mode == "disabled":
        return NullTracker()
    from talon_bench.tracking.wandb import WandbTracker

    return WandbTracker(config)
