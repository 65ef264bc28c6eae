"""Natural Questions (Kwiatkowski et al. 2019), open form: the hub's validation split, or the 80 that EAGLE measures."""

from __future__ import annotations

import json

from talon_bench.prompts.prompt import Loader, Prompt, Row, Variant, each, text_field, texts_field
from talon_bench.prompts.question import answers, asked, eagle80, one_turn, question_id


def from_row(row: Row, index: int) -> Prompt:
    """The question as EAGLE and Spec-Bench write it. Takes the hub's rows (question, answer) and EAGLE's (turns).

    `reference`: "answers", a JSON list of the answers that count as right, where the row has them.
    """
    if "turns" in row:
        return Prompt(question_id(row), "qa", (one_turn(row),), answers(row))
    reference = {"answers": json.dumps(texts_field(row, "answer"), ensure_ascii=False)}
    return Prompt(f"qa-{index:04d}", "qa", (as_sentence(text_field(row, "question")),), reference)


def as_sentence(question: str) -> str:
    """A capital at its start and a question mark at its end: the hub's questions have neither."""
    return question[0].upper() + question[1:] + ("" if question.endswith("?") else "?")


_EAGLE = eagle80("qa", "04252e41ab00bcc03b11940b4a3766cf40ae0b76a09c4f56968ba952f0b029f3", asked("qa", answers))

LOADER = Loader(
    variants={"eagle": Variant(each(from_row)), "eagle80": _EAGLE},
    published_sha256=_EAGLE.published_sha256,
    summed_files=_EAGLE.files,
    obtain=_EAGLE.obtain,
    licence="CC BY-SA 3.0",
)
