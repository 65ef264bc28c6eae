"""MT-Bench (Zheng et al. 2023, arXiv:2306.05685): 80 conversations of two turns in eight categories."""

from __future__ import annotations

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Loader, Prompt, Row, describe, text_field

TURNS = 2


def from_row(row: Row, index: int) -> Prompt:
    """Both turns as they are. Takes FastChat's form (question_id, turns) and the hub's (prompt_id, prompt).

    The id is `question_id`, or the hub's `prompt_id`, as text. `reference` maps "turn_1" and "turn_2" to the
    reference answers that the row has.
    """
    field = "turns" if "turns" in row else "prompt"
    turns = _texts(row, field)
    if len(turns) != TURNS:
        raise UsageError(f"field '{field}': expected {TURNS} turns, found {len(turns)}")
    if not all(turn.strip() for turn in turns):
        raise UsageError(f"field '{field}': expected text in both turns, found an empty one")
    answers = _texts(row, "reference") if row.get("reference") is not None else ()
    reference = {f"turn_{number}": answer for number, answer in enumerate(answers, start=1) if answer}
    return Prompt(_id(row), text_field(row, "category"), turns, reference)


def _id(row: Row) -> str:
    name = "question_id" if "question_id" in row else "prompt_id"
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise UsageError(f"field '{name}': expected a number or text, found {describe(value)}")
    return str(value)


def _texts(row: Row, name: str) -> tuple[str, ...]:
    value = row.get(name)
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"field '{name}': expected a list of texts, found {describe(value)}")
    if other := [item for item in value if not isinstance(item, str)]:
        raise UsageError(f"field '{name}': expected texts in the list, found {describe(other[0])}")
    return tuple(value)


LOADER = Loader(
    from_row=from_row,
    published_sha256=frozenset({"119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7"}),
    obtain="take fastchat/llm_judge/data/mt_bench/question.jsonl from the project lm-sys/FastChat",
)
