"""The words of the command line beside a measurement, such as `talon-bench plan ...`, and their options."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import OmegaConf

from talon_bench.errors import UsageError

COMMANDS = {
    "plan": "talon_bench.plan.command",
    "doctor": "talon_bench.doctor.command",
    "gpu-check": "talon_bench.gpu_check.command",
}
"""The module of each word; its `main(arguments) -> status` runs it."""

_WORD = re.compile(r"[A-Za-z][\w-]*")
_MULTIRUN = ("-m", "--multirun")
_HELP = ("-h", "--help")


@dataclass(frozen=True)
class Request:
    """What follows a command's word: its own options, the Hydra overrides of the run it is about, and two switches."""

    options: Any
    overrides: list[str]
    multirun: bool
    help: bool


def take_command(arguments: Sequence[str]) -> tuple[Callable[[Sequence[str]], int], list[str]] | None:
    """(the command that the first word names, the other arguments); None for a measurement, which begins with an override.

    Raises UsageError for a word that is no command.
    """
    place = next((number for number, argument in enumerate(arguments) if argument not in _MULTIRUN), None)
    if place is None or not _WORD.fullmatch(arguments[place]):
        return None
    word = arguments[place]
    if word not in COMMANDS:
        *first, last = COMMANDS
        raise UsageError(
            f"unknown command {word}; expected {', '.join(first)} or {last} as the first word,"
            " or overrides such as dataset=gsm8k for a measurement"
        )
    rest = [*arguments[:place], *arguments[place + 1 :]]
    return importlib.import_module(COMMANDS[word]).main, rest


def parse(word: str, schema: type, arguments: Sequence[str]) -> Request:
    """Split the arguments behind `word`: `word.NAME=VALUE` are fields of the dataclass `schema`, the rest is Hydra's.

    A hyphen of the word is an underscore in its options.

    Raises UsageError for an option that is not a field, for a second command word and for a switch other than -m and
    --help; OmegaConf's errors for a value of the wrong type.
    """
    known = [option.name for option in fields(schema)]
    group = _group(word)
    dotted, overrides = [], []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name.startswith(f"{group}."):
            dotted.append(_option(group, name.removeprefix(f"{group}."), known, argument if equals else None))
        elif argument.startswith("-") and argument not in (*_MULTIRUN, *_HELP):
            raise UsageError(f"{word} has no switch {name}; expected -m, overrides, or {group}.{known[0]}=VALUE")
        elif _WORD.fullmatch(argument):
            raise UsageError(f"{argument} is no override; expected GROUP=NAME, KEY=VALUE or {group}.{known[0]}=VALUE")
        elif not argument.startswith("-"):
            overrides.append(argument)
    options = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.from_dotlist(dotted))
    return Request(
        options=OmegaConf.to_object(options),
        overrides=overrides,
        multirun=any(argument in _MULTIRUN for argument in arguments),
        help=any(argument in _HELP for argument in arguments),
    )


def _group(word: str) -> str:
    """What stands before the dot of a command's own options."""
    return word.replace("-", "_")


def _option(group: str, name: str, known: list[str], argument: str | None) -> str:
    """The option as OmegaConf's "name=value"."""
    if name not in known:
        raise UsageError(
            f"unknown option {group}.{name}; expected one of {', '.join(f'{group}.{key}' for key in known)}"
        )
    if argument is None:
        raise UsageError(f"{group}.{name} has no value; write {group}.{name}=VALUE")
    return argument.removeprefix(f"{group}.")


def usage(word: str, purpose: str, schema: type) -> str:
    """The text of --help: purpose, form, and each option with its default."""
    options = "\n".join(f"  {_group(word)}.{option.name}={_text(option.default)}" for option in fields(schema))
    return f"{purpose}\n\n  talon-bench {word} [-m] [OVERRIDES] [OPTIONS]\n\noptions and their defaults:\n{options}"


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
