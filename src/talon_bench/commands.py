"""The words of the command line beside a measurement, `talon-bench plan ...` and `talon-bench doctor ...`, and their options."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import OmegaConf

from talon_bench.errors import UsageError

COMMANDS = {"plan": "talon_bench.plan.command", "doctor": "talon_bench.doctor.command"}
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
        raise UsageError(
            f"unknown command {word}; expected {' or '.join(COMMANDS)} as the first word,"
            " or overrides such as dataset=gsm8k for a measurement"
        )
    rest = [*arguments[:place], *arguments[place + 1 :]]
    return importlib.import_module(COMMANDS[word]).main, rest


def parse(word: str, schema: type, arguments: Sequence[str]) -> Request:
    """Split the arguments behind `word`: `word.NAME=VALUE` are fields of the dataclass `schema`, the rest is Hydra's.

    Raises UsageError for an option that is not a field, for a second command word and for a switch other than -m and
    --help; OmegaConf's errors for a value of the wrong type.
    """
    known = [option.name for option in fields(schema)]
    dotted, overrides = [], []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if name.startswith(f"{word}."):
            dotted.append(_option(word, name.removeprefix(f"{word}."), known, argument if equals else None))
        elif argument.startswith("-") and argument not in (*_MULTIRUN, *_HELP):
            raise UsageError(f"{word} has no switch {name}; expected -m, overrides, or {word}.{known[0]}=VALUE")
        elif _WORD.fullmatch(argument):
            raise UsageError(f"{argument} is no override; expected GROUP=NAME, KEY=VALUE or {word}.{known[0]}=VALUE")
        elif not argument.startswith("-"):
            overrides.append(argument)
    options = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.from_dotlist(dotted))
    return Request(
        options=OmegaConf.to_object(options),
        overrides=overrides,
        multirun=any(argument in _MULTIRUN for argument in arguments),
        help=any(argument in _HELP for argument in arguments),
    )


def _option(word: str, name: str, known: list[str], argument: str | None) -> str:
    """The option as OmegaConf's "name=value"."""
    if name not in known:
        raise UsageError(f"unknown option {word}.{name}; expected one of {', '.join(f'{word}.{key}' for key in known)}")
    if argument is None:
        raise UsageError(f"{word}.{name} has no value; write {word}.{name}=VALUE")
    return argument.removeprefix(f"{word}.")


def usage(word: str, purpose: str, schema: type) -> str:
    """The text of --help: purpose, form, and each option with its default."""
    options = "\n".join(f"  {word}.{option.name}={_text(option.default)}" for option in fields(schema))
    return f"{purpose}\n\n  talon-bench {word} [-m] [OVERRIDES] [OPTIONS]\n\noptions and their defaults:\n{options}"


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
