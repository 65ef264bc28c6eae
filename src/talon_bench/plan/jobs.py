"""From a command line to the configs of its jobs, in the order in which Hydra's sweeper would run them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode

from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.schema import Config, register, to_config


def expand(arguments: Sequence[str], *, multirun: bool) -> list[tuple[list[str], Config]]:
    """(overrides, config) of each job: the product of an experiment's own lists and those given, the last of a key.

    `multirun`: -m was given; an experiment can ask for it itself. Raises what the measurement would raise, and UsageError
    for a list of values without either.
    """
    register()
    parser = OverridesParser.create()
    given = parser.parse_overrides(list(arguments))
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        plain = [override.input_line for override in given if not override.is_sweep_override()]
        hydra = compose("config", overrides=plain, return_hydra_config=True).hydra
        swept = multirun or hydra.mode == RunMode.MULTIRUN
        lists = [override for override in given if override.is_sweep_override()]
        if lists and not swept:
            raise UsageError(f"{lists[0].input_line} lists several values; add -m to plan one job for each")
        params = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()] if swept else []
        jobs = _product([*parser.parse_overrides(params), *given])
        return [(job, to_config(compose("config", overrides=job))) for job in jobs]


def _product(overrides: Sequence[Override]) -> list[list[str]]:
    """Every combination of values, the first key changing slowest; of two overrides of one key the later counts."""
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [override.input_line]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise UsageError(f"{override.input_line} is no list of values; write them out, separated by commas")
    return [list(job) for job in itertools.product(*choices.values())]
