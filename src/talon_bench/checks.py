"""Checks of settings that several groups of the configuration share."""

from __future__ import annotations

from talon_bench.errors import UsageError


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise UsageError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise UsageError(f"{name} is {value}; expected one of {', '.join(allowed)}")


def at_least(owner: str, config: object, **least: int) -> None:
    """Raise UsageError unless each named setting of `config` has its least value or more.

    owner: what stands before a setting's name in the message, "trainer." or "method talon: ".
    """
    for name, minimum in least.items():
        if (found := getattr(config, name)) < minimum:
            raise UsageError(f"{owner}{name} is {found}; expected {minimum} or more")
