"""The methods that a line-up can hold: their settings, and how settings become drafters."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from omegaconf import MISSING, OmegaConf, ValidationError

from talon_bench.checks import at_least
from talon_bench.errors import UsageError

if TYPE_CHECKING:
    from talon_bench.drafters.base import Drafter
    from talon_bench.drafters.head import DraftHead
    from talon_bench.target import Target

# OmegaConf reads annotations at run time and needs typing.Optional on Python 3.10.
# ruff: noqa: UP045


@dataclass
class MethodConfig:
    """What all methods share. `name` is the key of the method's records, `label` what tables call it."""

    policy: str = MISSING
    name: str = MISSING
    label: str = MISSING

    lossless: ClassVar[bool] = True

    def build(self, target: Target, head: DraftHead | None) -> Drafter:
        """A drafter for one run; `head` is the head that the method asks for."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Everything but the name, for the records."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        return {"head": None, **own, "lossless": self.lossless}


@dataclass
class AutoregressiveConfig(MethodConfig):
    """Plain decoding on the same loop and cache."""

    policy: str = "ar"
    engine: str = "run"
    """run: the engine of the run; eager: every kernel of a pass is launched by itself, as papers measure AR."""

    def __post_init__(self) -> None:
        if self.engine not in ("run", "eager"):
            raise UsageError(f"method {self.name}: engine is {self.engine}; expected run or eager")

    def build(self, target: Target, head: DraftHead | None) -> Drafter:
        from talon_bench.drafters.base import NoDrafter

        return NoDrafter(target.device, eager=self.engine == "eager")


@dataclass
class HeadMethodConfig(MethodConfig):
    """A method that drafts with a head: "eagle2" or "eagle3", a key of the run's `head`."""

    head: str = MISSING

    def build(self, target: Target, head: DraftHead | None) -> Drafter:
        from talon_bench.drafters.session import HeadDrafter
        from talon_bench.drafters.static_session import StaticHeadDrafter

        return (StaticHeadDrafter if target.static else HeadDrafter)(head, self.tree_policy())

    def tree_policy(self) -> Any:
        """The policy object of `policies/`."""
        raise NotImplementedError


@dataclass
class EagleConfig(HeadMethodConfig):
    policy: str = "eagle"
    budget: int = 60
    depth: int = 8
    top_k: int = 10

    def __post_init__(self) -> None:
        at_least(f"method {self.name}: ", self, budget=2, depth=1, top_k=1)

    def tree_policy(self) -> Any:
        from talon_bench.policies import Eagle

        return Eagle(self.budget, self.depth, self.top_k)


@dataclass
class TalonConfig(HeadMethodConfig):
    policy: str = "talon"
    budget: int = 60
    root_top_k: int = 10
    alpha: float = 0.03
    init_layers: int = 1

    def __post_init__(self) -> None:
        at_least(f"method {self.name}: ", self, budget=2, root_top_k=1, init_layers=0)
        if not 0 < self.alpha <= 1:
            raise UsageError(f"method {self.name}: alpha is {self.alpha}; expected a value in (0, 1]")
        if self.root_top_k >= self.budget:
            raise UsageError(
                f"method {self.name}: root_top_k is {self.root_top_k} and budget {self.budget};"
                " the budget counts the root, so root_top_k must be smaller than it"
            )
        if self.init_layers > 3:
            raise UsageError(f"method {self.name}: init_layers is {self.init_layers}; expected 0 to 3")

    def tree_policy(self) -> Any:
        from talon_bench.policies import Talon

        return Talon(self.budget, self.root_top_k, self.alpha, self.init_layers)


@dataclass
class StaticConfig(HeadMethodConfig):
    policy: str = "static"
    tree: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.tree:
            raise UsageError(f"method {self.name}: the tree is empty; list at least one path of ranks, such as [0]")
        self.tree_policy()

    def tree_policy(self) -> Any:
        from talon_bench.policies import Static

        return Static(self.tree)


@dataclass
class ChainConfig(HeadMethodConfig):
    policy: str = "chain"
    length: int = 4

    def __post_init__(self) -> None:
        at_least(f"method {self.name}: ", self, length=1)

    def tree_policy(self) -> Any:
        from talon_bench.policies import chain

        return chain(self.length)


@dataclass
class LookupConfig(MethodConfig):
    """Prompt lookup: n-grams of the context instead of a head."""

    policy: str = "lookup"
    length: int = 5
    max_ngram: int = 3

    def __post_init__(self) -> None:
        at_least(f"method {self.name}: ", self, length=1, max_ngram=1)

    def build(self, target: Target, head: DraftHead | None) -> Drafter:
        from talon_bench.drafters.lookup import PromptLookup

        return PromptLookup(self.length, self.max_ngram, target.device)


METHOD_SCHEMAS: dict[str, type[MethodConfig]] = {
    "ar": AutoregressiveConfig,
    "chain": ChainConfig,
    "eagle": EagleConfig,
    "lookup": LookupConfig,
    "static": StaticConfig,
    "talon": TalonConfig,
}


def head_kind(method: MethodConfig) -> Optional[str]:
    """The kind of head that the method drafts with, None for methods without one."""
    return getattr(method, "head", None)


def sweep_variants(method: MethodConfig, name: str, values: list[Any]) -> list[MethodConfig]:
    """The method once per value of its setting `name`, each with its own name and label.

    Raises UsageError for a setting that the method has not, and for a value of the wrong type.
    """
    known = {f.name: f.type for f in fields(method) if f.name not in ("policy", "name", "label")}
    if name not in known:
        raise UsageError(
            f"sweep.field is {name}, which method {method.name} has not; expected one of {', '.join(known)}"
        )
    return [_variant(method, name, value) for value in values]


def _variant(method: MethodConfig, name: str, value: Any) -> MethodConfig:
    changed = {name: value, "name": f"{method.name}[{name}={value}]", "label": f"{method.name}, {name} {value}"}
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(method), changed))
    except ValidationError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"sweep.values holds {value}, which cannot be the {name} of {method.name}: {reason}") from None
