"""A run's config for scripts and tests: the same groups and overrides as the command line."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from talon_bench.paths import shipped
from talon_bench.schema import Config, register, to_config


def compose_config(overrides: Sequence[str] = ()) -> Config:
    """Compose `conf/` with overrides such as "dataset=mt_bench"; raises what the command line would report."""
    return to_config(_compose(overrides))


def swept_values(key: str, overrides: Sequence[str]) -> list[str]:
    """Values of `key` over which the jobs of a command differ: those given, else those of the experiment's own grid."""
    given = [value for name, _, value in (override.partition("=") for override in overrides) if name == key]
    if not given:
        params = _compose(overrides, return_hydra_config=True).hydra.sweeper.params or {}
        given = [params.get(key, "")]
    return [value for value in given[-1].split(",") if value]


def _compose(overrides: Sequence[str], *, return_hydra_config: bool = False) -> DictConfig:
    register()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        return compose("config", overrides=list(overrides), return_hydra_config=return_hydra_config)
