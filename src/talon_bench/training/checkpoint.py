"""What a training keeps on disk: its state, whole or not at all, and the points of its learning curve."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talon_bench import atomic
from talon_bench.drafters.spec import HeadSpec
from talon_bench.errors import UsageError

FILE = "checkpoint.pt"
CURVE = "curve.jsonl"


@dataclass
class Position:
    """How far a training is."""

    step: int = 0
    tokens: int = 0
    """Trained so far, repetitions counted."""
    seconds: float = 0.0
    """Spent on training steps, over all starts."""
    epoch: int = 0
    batch: int = 0
    """Number of the next batch in the epoch's plan."""


@dataclass
class Checkpoint:
    """All that decides how a training goes on: chance enters by seed, epoch and step alone."""

    spec: HeadSpec
    ids: Tensor
    """int64 [draft vocab]: target ids of the draft vocabulary."""
    weights: dict[str, Tensor]
    """Parameters and the scale of the inputs."""
    average: list[Tensor] | None
    """Averaged parameters, where they are kept."""
    optimizer: list[dict[str, Any]]
    """Of each part of the optimizer."""
    losses: list[float]
    """Of the steps since the last point of the curve."""
    position: Position

    def save(self, folder: Path) -> None:
        """Replace the folder's checkpoint."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        state |= {"spec": asdict(self.spec), "position": asdict(self.position)}
        atomic.replace(folder / FILE, lambda part: torch.save(state, part))

    @classmethod
    def load(cls, folder: Path) -> Checkpoint | None:
        """The folder's checkpoint, None where there is none yet."""
        file = folder / FILE
        if not file.is_file():
            return None
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(f"{FILE} of {folder.name} cannot be read ({line}); remove it to train anew") from None
        state["spec"] = HeadSpec(**state["spec"])
        return cls(**{**state, "position": Position(**state["position"])})


def append_point(folder: Path, point: dict[str, Any]) -> None:
    """Add a point to the learning curve."""
    with (folder / CURVE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(point) + "\n")


def read_points(folder: Path) -> list[dict[str, Any]]:
    """The points of a learning curve, in the order of steps; a line cut short by a kill is left out."""
    file = folder / CURVE
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def keep_points(folder: Path, step: int) -> None:
    """Drop the points behind `step`, which the training is going to reach again."""
    kept = [json.dumps(point) + "\n" for point in read_points(folder) if point["step"] <= step]
    atomic.replace(folder / CURVE, lambda part: part.write_text("".join(kept), encoding="utf-8"))
