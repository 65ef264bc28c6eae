"""From a config to the methods of one run, in the order of the tables."""

from __future__ import annotations

from talon_bench.errors import UsageError
from talon_bench.methods import AutoregressiveConfig, MethodConfig, head_kind, sweep_variants
from talon_bench.schema import Config

BASELINE = "ar"


def resolve(config: Config) -> tuple[list[MethodConfig], list[str]]:
    """(methods, names left out for want of a head): AR first, then the line-up, with the method under test in its place.

    A sweep puts one variant of the method under test per value there instead. Raises UsageError for a line-up without AR,
    for two methods of one name, and for a kind of head that the target has not, unless the line-up says to skip those.
    """
    under_test = [config.method]
    if config.sweep is not None:
        under_test = sweep_variants(config.method, config.sweep.field, config.sweep.values)
    listed = list(config.lineup.methods.values())
    methods: list[MethodConfig] = []
    for method in listed:
        methods += under_test if method.name == config.method.name else [method]
    if all(method.name != config.method.name for method in listed):
        methods += under_test
    methods.sort(key=lambda method: method.name != BASELINE)
    _check(methods)
    missing = [method for method in methods if head_kind(method) not in (None, *config.head)]
    if missing and not config.lineup.skip_missing_heads:
        found = ", ".join(config.head) or "none"
        raise UsageError(
            f"method {missing[0].name} needs a head of kind {head_kind(missing[0])}, target {config.target.name} has {found};"
            " choose another line-up or method, or set lineup.skip_missing_heads=true"
        )
    return [method for method in methods if method not in missing], [method.name for method in missing]


def _check(methods: list[MethodConfig]) -> None:
    names = [method.name for method in methods]
    if BASELINE not in names or not isinstance(methods[0], AutoregressiveConfig):
        raise UsageError(f"the line-up has no method {BASELINE} with policy ar; add /method@methods.ar: ar to it")
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two methods are named {sorted(repeated)[0]}; give one of them another name")
