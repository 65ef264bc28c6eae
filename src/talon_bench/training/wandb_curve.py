"""The learning curve on Weights & Biases, for those who ask for it; no failure of the service ends a training."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from talon_bench.errors import UsageError
from talon_bench.schema import TrackingConfig


class NoCurve:
    """Tracking off."""

    def point(self, point: dict[str, Any]) -> None:
        """Take one point of the learning curve."""

    def finish(self) -> None:
        """The training is over, or interrupted."""


class WandbCurve(NoCurve):
    """One W&B run per head, continued when the training is. Raises UsageError where wandb is not installed."""

    def __init__(self, config: TrackingConfig, folder: Path, settings: dict[str, Any], identity: str) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("tracking.kind is wandb, which is not installed; run `pip install wandb`") from None
        from talon_bench.tracking.wandb import SETTINGS

        self._run: Any = None
        try:
            self._run = wandb.init(
                project=config.project,
                entity=config.entity,
                mode=config.mode,
                group=config.group,
                job_type="training",
                name=folder.name,
                id=hashlib.sha256(identity.encode()).hexdigest()[:16],
                resume="allow",
                config=settings,
                dir=str(folder),
                settings=wandb.Settings(**SETTINGS),
            )
        except (Exception, SystemExit) as error:
            self._give_up(error)

    def point(self, point: dict[str, Any]) -> None:
        values = {key: value for key, value in point.items() if isinstance(value, int | float)}
        for family, scores in point["families"].items():
            values[f"chain/{family}"] = scores["chain"]
            values |= {
                f"{name}/{family}/step_{step}": value
                for name in ("top1", "top3", "top10")
                for step, value in enumerate(scores[name], 1)
                if value is not None
            }
        self._try(lambda: self._run.log(values, step=point["step"]))

    def finish(self) -> None:
        self._try(lambda: self._run.finish())

    def _try(self, action: Any) -> None:
        if self._run is None:
            return
        try:
            action()
        except (Exception, SystemExit) as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._run = None
        line = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"warning: Weights & Biases failed ({line}); the curve is in curve.jsonl", file=sys.stderr, flush=True)


def make_curve(config: TrackingConfig, folder: Path, settings: dict[str, Any], identity: str) -> NoCurve:
    """The tracker that the config asks for; wandb is imported only on request."""
    if config.kind == "none" or config.mode == "disabled":
        return NoCurve()
    return WandbCurve(config, folder, settings, identity)
