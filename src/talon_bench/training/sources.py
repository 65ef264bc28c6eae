"""How rows of training sources become conversations: asked in the forms in which the benchmarks ask theirs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talon_bench.errors import UsageError
from talon_bench.prompts import humaneval, mbpp, spider
from talon_bench.prompts.alpaca import with_input
from talon_bench.prompts.prompt import Row, describe, optional_text, text_field
from talon_bench.prompts.sharegpt import ASKED, NOT_ASKED
from talon_bench.training.rows import locate, read_file
from talon_bench.training.schema import SourceConfig

_SYSTEM = frozenset({"system", "developer"})
_DOCUMENT_END = 200
"""Characters that tell documents apart."""


@dataclass(frozen=True)
class Conversation:
    """Messages in turn, a user's first (behind a system message, where there is one).

    `own` is the row's own text where it is asked in a form with wording or schemas around it: it is compared with test prompts in
    place of the messages. `group` names what the held-out split must not tear apart, None where a row stands for itself.
    """

    messages: tuple[dict[str, str], ...]
    own: str | None = None
    group: str | None = None


FromRow = Callable[[Row], "Conversation | None"]
"""None for a row that asks nothing; UsageError names a broken field."""


def gsm8k(row: Row) -> Conversation:
    """The bare question, as EAGLE and Spec-Bench ask it."""
    return _asked(text_field(row, "question"))


def mbpp_task(row: Row) -> Conversation:
    """The paper's wording with the tests, the default form of the data set here."""
    return _asked(mbpp.instruction(row), text_field(row, "text" if "text" in row else "prompt"))


def function(row: Row) -> Conversation:
    """A signature with its docstring, in EAGLE's form of HumanEval, most of whose prompts begin with a line break."""
    prompt = text_field(row, "prompt")
    return _asked(f"{humaneval.INSTRUCTION}\n{prompt}", prompt)


def spider_questions(schemas: dict[str, Row]) -> FromRow:
    """The question behind its database's CREATE TABLE statements, the default form of the data set here."""

    def from_row(row: Row) -> Conversation:
        name = text_field(row, "db_id")
        if name not in schemas:
            raise UsageError(f"field 'db_id': found no schema of {name} in the companion file")
        question = text_field(row, "SpiderQuestion" if "SpiderQuestion" in row else "question")
        return _asked(spider.code(question, schemas[name]), question)

    return from_row


def sharegpt(row: Row) -> Conversation | None:
    """The conversation from its first human turn on. Pieces of a long one share the id up to its last underscore."""
    found = conversation(row)
    if found is None:
        return None
    return Conversation(found.messages, group=text_field(row, "id").rpartition("_")[0] or None)


def conversation(row: Row) -> Conversation | None:
    """Any of the usual fields: `messages` (role, content), `conversations` (from, value), `prompt`, `question`, or
    `instruction` with what `input`, `context` or the first of `instances` add to it.
    """
    for name, keys in (("messages", ("role", "content")), ("conversations", ("from", "value"))):
        if name in row:
            messages = _in_turn(_turns(row, name, *keys))
            return Conversation(messages) if messages else None
    for name in ("prompt", "question"):
        if name in row:
            text = text_field(row, name).strip()
            # Requests about one document differ at their beginnings.
            group = text[-_DOCUMENT_END:] if len(text) > 2 * _DOCUMENT_END else None
            return Conversation(_asked(row[name]).messages, group=group)
    text = with_input(text_field(row, "instruction"), _given(row))
    return _asked(text)


def reader(name: str, source: SourceConfig, root: str | None) -> FromRow:
    """The loader of a source; UsageError for an unknown one, or where its companion file is missing."""
    if source.loader not in LOADERS:
        raise UsageError(f"training.sources.{name}.loader is {source.loader}; expected one of {', '.join(LOADERS)}")
    return LOADERS[source.loader](name, source, root)


def _spider(name: str, source: SourceConfig, root: str | None) -> FromRow:
    file = locate(source.companion, root) if source.companion else None
    if file is None:
        raise UsageError(
            f"training source {name}: found no schemas in data.root, looked for {source.companion or 'nothing'};"
            f" {spider.LOADER.companion.obtain}, or leave the source out with training.sources.{name}.limit=0"
        )
    return spider_questions({text_field(row, "db_id"): row for _, row in read_file(Path(file))})


def _plain(from_row: FromRow) -> Callable[[str, SourceConfig, str | None], FromRow]:
    return lambda name, source, root: from_row


LOADERS: dict[str, Callable[[str, SourceConfig, str | None], FromRow]] = {
    "rows": _plain(conversation),
    "gsm8k": _plain(gsm8k),
    "mbpp": _plain(mbpp_task),
    "spider": _spider,
    "docstrings": _plain(function),
    "sharegpt": _plain(sharegpt),
}
"""`SourceConfig.loader` names one of these; users' own files are read by `rows`."""


def _asked(text: str, own: str | None = None) -> Conversation:
    return Conversation(({"role": "user", "content": text},), own)


def _given(row: Row) -> str:
    """What an instruction is about, "" where it says all itself."""
    if "instances" in row:
        instances = row["instances"]
        if not isinstance(instances, Sequence) or not instances or not isinstance(instances[0], dict):
            raise UsageError(f"field 'instances': expected a list of objects, found {describe(instances)}")
        return optional_text(instances[0], "input")
    return optional_text(row, "input") or optional_text(row, "context")


def _turns(row: Row, name: str, role_key: str, text_key: str) -> list[dict[str, str]]:
    """The turns under `name` with the roles system, user and assistant; blank ones are left out."""
    value: Any = row[name]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UsageError(f"field '{name}': expected a list of turns, found {describe(value)}")
    found = []
    for turn in value:
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in (role_key, text_key)):
            raise UsageError(f"field '{name}': expected objects with the texts '{role_key}' and '{text_key}'")
        if turn[text_key].strip():
            found.append({"role": _role(name, turn[role_key]), "content": turn[text_key]})
    return found


def _role(name: str, role: str) -> str:
    if role in ASKED:
        return "user"
    if role in _SYSTEM:
        return "system"
    if role in NOT_ASKED:
        return "assistant"
    known = ", ".join(sorted(ASKED | NOT_ASKED | _SYSTEM))
    raise UsageError(f"field '{name}': expected a role of {known}, found {json.dumps(role[:20])}")


def _in_turn(turns: list[dict[str, str]]) -> tuple[dict[str, str], ...]:
    """Turns from the first user's on, as long as users and assistants alternate; () where no user asks.

    The system message is kept only where the conversation begins with it.
    """
    system = turns[:1] if turns and turns[0]["role"] == "system" else []
    asked = [number for number, turn in enumerate(turns) if turn["role"] == "user"]
    kept: list[dict[str, str]] = []
    for turn in turns[asked[0] :] if asked else []:
        if turn["role"] != ("user", "assistant")[len(kept) % 2]:
            break
        kept.append(turn)
    return (*system, *kept) if kept else ()
