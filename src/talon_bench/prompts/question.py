"""Rows of FastChat's question.jsonl (question_id, category, turns, reference), the form that EAGLE and Spec-Bench share."""

from __future__ import annotations

import json
from collections.abc import Callable

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import FromRow, Prompt, Row, Variant, describe, each, text_field, texts_field


def question_id(row: Row) -> str:
    """The row's `question_id` as text."""
    value = row.get("question_id")
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise UsageError(f"field 'question_id': expected a number or text, found {describe(value)}")
    return str(value)


def turns(row: Row, name: str = "turns") -> tuple[str, ...]:
    """The row's turns, at least one, none of them blank."""
    found = texts_field(row, name)
    if not found or not all(turn.strip() for turn in found):
        raise UsageError(f"field '{name}': expected text in every turn, found {'an empty one' if found else 'no turn'}")
    return found


def answers(row: Row) -> dict[str, str]:
    """Reference answers by turn, "turn_1" and so on, where the row has them; several for one turn as a JSON list."""
    found = row.get("reference") or ()
    if not isinstance(found, (list, tuple)):
        raise UsageError(f"field 'reference': expected a list of answers, found {describe(found)}")
    return {f"turn_{number}": _answer(answer) for number, answer in enumerate(found, start=1) if answer}


def _answer(answer: object) -> str:
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, (list, tuple)) or not all(isinstance(text, str) for text in answer):
        raise UsageError(f"field 'reference': expected texts or lists of texts in the list, found {describe(answer)}")
    return json.dumps(answer, ensure_ascii=False)


def one_turn(row: Row) -> str:
    """The only turn of a row that must have one."""
    found = turns(row)
    if len(found) != 1:
        raise UsageError(f"field 'turns': expected 1 turn, found {len(found)}")
    return found[0]


def plain(row: Row, index: int) -> Prompt:
    """The row as it is, with any number of turns."""
    return Prompt(question_id(row), text_field(row, "category"), turns(row), answers(row))


def asked(category: str, reference: Callable[[Row], dict[str, str]]) -> FromRow:
    """Rows of one turn, asked as it is, in a category of the data set's own."""

    def from_row(row: Row, index: int) -> Prompt:
        return Prompt(question_id(row), category, (one_turn(row),), reference(row))

    return from_row


def eagle80(bench: str, sha256: str, from_row: FromRow) -> Variant:
    """EAGLE's 80 questions of a bench, from its own file, as they are."""
    return Variant(
        each(from_row),
        files=(f"eagle/{bench}/question.jsonl", f"{bench}/question.jsonl"),
        published_sha256=frozenset({sha256}),
        obtain=f"take eagle/data/{bench}/question.jsonl from the project SafeAILab/EAGLE",
    )
