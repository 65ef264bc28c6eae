"""A run's config for scripts and tests: the same groups and overrides as the command line."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir

from talon_bench.paths import shipped
from talon_bench.schema import Config, register, to_config


def compose_config(overrides: Sequence[str] = ()) -> Config:
    """Compose `conf/` with overrides such as "dataset=mt_bench"; raises what the command line would report."""
    register()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        return to_config(compose("config", overrides=list(overrides)))
