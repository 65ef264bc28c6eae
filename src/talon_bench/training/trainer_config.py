"""Settings of the trainer: what head, how it learns, how often it is saved and measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from talon_bench.checks import at_least, one_of
from talon_bench.errors import UsageError

# OmegaConf reads annotations at run time and needs typing.Optional on Python 3.10.
# ruff: noqa: UP045

KINDS = ("eagle3", "eagle2")
OPTIMIZERS = ("adamw", "muon")


@dataclass
class TrainerConfig:
    """One head. Its size is the target's where nothing else is said: same heads, same MLP, same rotary base."""

    kind: str = "eagle3"
    """eagle3, or eagle2: the format that EAGLE-1 and EAGLE-2 share."""
    name: Optional[str] = None
    """Folder of this head under `work`/train and `work`/heads, so that several share their data; null: the kind."""
    init_from: Optional[str] = None
    """Folder of a head to go on from; its sizes, rotary base and draft vocabulary are kept."""
    draft_vocab: int = 8192
    """EAGLE-3: tokens that the head can draft, the most frequent of the trained answers. EAGLE-2: of which every step of
    the token loss knows the logits."""
    intermediate_size: Optional[int] = None
    rope_theta: Optional[float] = None

    unroll: int = 4
    """Steps of the training-time test."""
    ramp: float = 0.0
    """Part of the training over which the unroll grows from 1 step to `unroll`: early steps cost less, so there are more
    of them in an hour. 0: all steps from the start."""
    step_decay: float = 0.8
    """Weight of step j in the loss: step_decay^j."""
    regression_weight: float = 1.0
    """EAGLE-2: weight of the regression on the target's states beside the token loss. The EAGLE paper has 10."""
    random_columns: int = 2048
    """EAGLE-2: tokens outside the draft vocabulary whose logits stand for all others in a step of the token loss."""

    steps: Optional[int] = None
    """Length of the training; null: as `tokens` says."""
    tokens: Optional[int] = None
    """Trained tokens, repetitions counted; null: as `epochs` says."""
    epochs: float = 3.0
    max_data_tokens: Optional[int] = None
    """Use only so many different trained tokens: for curves of the data amount. Null: all."""
    batch_tokens: int = 1700
    """Trained tokens of a step."""
    optimizer: str = "adamw"
    """adamw, or muon: Muon for the matrices of the layer and `fc`, AdamW for norms and output projection."""
    lr: float = 1.2e-3
    warmup: int = 50
    """Steps from rate 0 to `lr`, from where it falls as a cosine."""
    final_lr: float = 0.01
    """Rate at the end, as a part of `lr`."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.0
    """Decay of an average of the weights that is measured and exported in their place; 0: the weights themselves."""
    precision: str = "float32"
    """float32, or bfloat16 activations over float32 weights: faster where the processor multiplies bfloat16 (AMX, GPU)."""
    seed: int = 0

    checkpoint_minutes: float = 5.0
    evaluate_steps: int = 100
    """Steps between two points of the learning curve; the first point is before the first step, the last at the end."""
    evaluate_sequences: int = 20
    """At most so many held-out sequences of each family."""
    licence: str = "apache-2.0"
    """Of the exported weights, in the hub's spelling."""

    def __post_init__(self) -> None:
        one_of("trainer.kind", self.kind, KINDS)
        one_of("trainer.optimizer", self.optimizer, OPTIMIZERS)
        one_of("trainer.precision", self.precision, ("float32", "bfloat16"))
        if self.name is not None and not re.fullmatch(r"[\w][\w.-]*", self.name):
            raise UsageError(f"trainer.name is {self.name!r}; expected letters, digits, dots, dashes and underscores")
        at_least("trainer.", self, draft_vocab=10, unroll=1, batch_tokens=1, warmup=0)
        at_least("trainer.", self, evaluate_steps=1, evaluate_sequences=1, random_columns=0)
        for name in ("steps", "tokens", "max_data_tokens", "intermediate_size", "rope_theta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"trainer.{name} is {value}; expected more than 0, or null")
        for name in ("epochs", "lr", "clip", "checkpoint_minutes"):
            if not getattr(self, name) > 0:
                raise UsageError(f"trainer.{name} is {getattr(self, name)}; expected more than 0")
        for name in ("step_decay", "final_lr", "ramp"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"trainer.{name} is {getattr(self, name)}; expected 0 to 1")
        if not 0 <= self.ema < 1:
            raise UsageError(f"trainer.ema is {self.ema}; expected 0 or more and less than 1")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"trainer.betas is {self.betas}; expected two numbers from 0 to less than 1")
        for name in ("weight_decay", "regression_weight"):
            if getattr(self, name) < 0:
                raise UsageError(f"trainer.{name} is {getattr(self, name)}; expected 0 or more")

    @property
    def folder(self) -> str:
        """Name of the head's folder."""
        return self.name or self.kind
