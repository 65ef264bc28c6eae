"""MBPP answers: what is run for them, and the reference solutions of both files."""

from __future__ import annotations

import json

import pytest

from scoring_data import shared_file
from talon_bench.scoring import SCORERS, ScoringConfig
from talon_bench.scoring.base import Answer, Score
from talon_bench.scoring.mbpp import called_names, program_of

CODE = "LIMIT = 9\ndef least(a, b):\n    return min(a, b, LIMIT)"
PROBLEM = {
    "task_id": "1",
    "code": CODE,
    "setup": "import math",
    "tests": "assert least(1, 2) == 1\nassert math.isclose(least(9.5, 10), 9)",
    "challenge_tests": "assert least(0, 0) == 'this is not run'",
}
FORMS = {
    "plain": "{}",
    "fenced": "Here it is:\n```python\n{}\n```\nIt takes the least.",
    "few-shot": "[BEGIN]\n{}\n[DONE]\n\nYou are an expert Python programmer",
    "few-shot, begun": "{}\n[DONE]\n[BEGIN]\nmore",
}


def score(answers: list[Answer]) -> list[Score]:
    """With time for task 123, whose reference solution takes seconds, also on a busy machine."""
    return SCORERS["mbpp"](ScoringConfig(workers=1, timeout_s=120.0), None).score(answers)


def references(name: str) -> list[dict[str, str]]:
    """References of a file's rows, as the loader's."""
    text = shared_file(f"mbpp/{name}").read_text(encoding="utf-8")
    rows = json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    return [
        {
            "task_id": str(row["task_id"]),
            "code": row["code"],
            "setup": "\n".join(row.get("test_imports", ())) or row.get("test_setup_code", ""),
            "tests": "\n".join(row["test_list"]),
            "challenge_tests": "",
        }
        for row in rows
    ]


@pytest.mark.parametrize("form", FORMS)
def test_the_program_is_code_then_setup_and_tests(form: str) -> None:
    program = program_of(Answer(FORMS[form].format(CODE), PROBLEM))
    assert program is not None
    assert program[0].strip() == CODE
    assert program[1:] == [f"{PROBLEM['setup']}\n{PROBLEM['tests']}"]


def test_scores() -> None:
    texts = [CODE, CODE.replace("min", "max"), CODE.replace("least", "most"), "import re", "[BEGIN]\n[DONE]", ""]
    outcomes = ["passed", "wrong answer", "error: NameError", "error: NameError", "no answer found", "no answer found"]
    scores = score([Answer(text, PROBLEM) for text in texts])
    assert scores == [Score(outcome == "passed", outcome, "tests") for outcome in outcomes]


def test_called_names_ends_with_those_of_builtins() -> None:
    assert called_names("assert set(f(1)) == set(g.h(2))\nassert sum(f(x) for x in (1,)) == 2") == ["f", "set", "sum"]


@pytest.mark.parametrize(("name", "count"), [("mbpp.jsonl", 974), ("sanitized-mbpp.json", 427)])
def test_every_reference_solution_passes(name: str, count: int) -> None:
    rows = references(name)
    scores = score([Answer(row["code"], row) for row in rows])
    failed = {row["task_id"]: each.outcome for row, each in zip(rows, scores, strict=True) if not each.correct}
    assert (len(scores), failed) == (count, {})


@pytest.mark.parametrize("name", ["mbpp.jsonl", "sanitized-mbpp.json"])
@pytest.mark.parametrize("form", FORMS)
def test_every_reference_solution_is_found_in_every_form(name: str, form: str) -> None:
    for row in references(name):
        program = program_of(Answer(FORMS[form].replace("{}", row["code"]), row))
        assert program is not None
        assert program[0].split() == row["code"].split(), row["task_id"]
