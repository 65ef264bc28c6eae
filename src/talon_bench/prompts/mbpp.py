"""MBPP (Austin et al. 2021, arXiv:2108.07732): 974 small Python tasks, and the 427 of them that its authors sanitized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import (
    FromRow,
    Loader,
    Prompt,
    Row,
    Variant,
    each,
    number_field,
    optional_text,
    text_field,
    texts_field,
)
from talon_bench.scoring.extract import error_line

EXAMPLES = (2, 3, 4)
"""Tasks of the prompt split (ids 1 to 10) that the paper shows before each question."""


def instruction(row: Row) -> str:
    """The paper's wording, up to the tests."""
    tests = "\n".join(texts_field(row, "test_list"))
    return (
        f"You are an expert Python programmer, and here is your task: {_text(row)}"
        f" Your code should pass these tests:\n\n{tests}"
    )


def task(form: Callable[[Row], str]) -> FromRow:
    """One turn, the row in `form`. Takes the full set's form (text) and the sanitized one's (prompt); the id is `task_id`."""

    def from_row(row: Row, index: int) -> Prompt:
        reference = _reference(row)
        return Prompt(reference["task_id"], "coding", (form(row),), reference)

    return from_row


def paper3(rows: Sequence[Row]) -> FromRow:
    """The paper's three-shot form; its stop text is "[DONE]". The tasks that it shows are not asked."""
    shown = cache(lambda: _shown(rows))
    ask = task(lambda row: f"{shown()}{instruction(row)}\n[BEGIN]\n")

    def from_row(row: Row, index: int) -> Prompt | None:
        if number_field(row, "task_id") not in EXAMPLES:
            return ask(row, index)
        _reference(row)
        instruction(row)
        return None

    return from_row


def _shown(rows: Sequence[Row]) -> str:
    by_id = {number: row for row in rows for number in EXAMPLES if row.get("task_id") == number}
    if missing := [str(number) for number in EXAMPLES if number not in by_id]:
        raise UsageError(
            f"dataset.variant=paper3 shows tasks 2, 3 and 4 of the same file as examples, found no {', '.join(missing)}"
        )
    return "".join(
        f"{instruction(by_id[number])}\n[BEGIN]\n{text_field(by_id[number], 'code')}\n[DONE]\n\n" for number in EXAMPLES
    )


def _text(row: Row) -> str:
    return text_field(row, "text" if "text" in row else "prompt")


def _tests(row: Row) -> str:
    """The tests, one a line; UsageError where they are no Python, since scoring reads from them what they call."""
    tests = "\n".join(texts_field(row, "test_list"))
    if (line := error_line(tests)) is not None:
        raise UsageError(f"field 'test_list': expected Python, found a syntax error in line {line} of the tests")
    return tests


def _reference(row: Row) -> dict[str, str]:
    """ "task_id"; "code", the solution; "setup", "tests" and "challenge_tests", one line each or more, which may be ""."""
    imports = "\n".join(texts_field(row, "test_imports")) if "test_imports" in row else ""
    challenge = texts_field(row, "challenge_test_list") if "challenge_test_list" in row else ()
    return {
        "task_id": str(number_field(row, "task_id")),
        "code": text_field(row, "code"),
        "setup": imports or optional_text(row, "test_setup_code"),
        "tests": _tests(row),
        "challenge_tests": "\n".join(challenge),
    }


LOADER = Loader(
    variants={
        "zero_shot": Variant(each(task(instruction))),
        "paper3": Variant(paper3),
        "bare": Variant(each(task(_text))),
    },
    published_sha256=frozenset(
        {
            "ccf64ceae9c5403bf50a044cb6d505bfd2a2963ee58338ba268fd65beab92a9f",
            "ca95deaa9a01ef0a6f439f88bcf0dd3db3563d22f22aad6cae04ebb9a8d8c8e9",
        }
    ),
    obtain="take mbpp/mbpp.jsonl and mbpp/sanitized-mbpp.json from the project google-research/google-research",
    licence="CC BY 4.0",
    splits={"test": lambda row: 11 <= number_field(row, "task_id") <= 510, "all": lambda row: True},
)
