"""CNN/DailyMail (See et al. 2017, version 3.0.0): the hub's test split, or the 80 articles that EAGLE measures."""

from __future__ import annotations

from talon_bench.prompts.prompt import Loader, Prompt, Row, Variant, each, optional_text, text_field
from talon_bench.prompts.question import answers, asked, eagle80, one_turn, question_id

INSTRUCTION = "Summarize: "


def from_row(row: Row, index: int) -> Prompt:
    """EAGLE's and Spec-Bench's form. Takes the hub's rows (article, highlights) and EAGLE's (turns)."""
    if "turns" in row:
        return Prompt(question_id(row), "summarization", (one_turn(row),), answers(row))
    highlights = optional_text(row, "highlights")
    turn = INSTRUCTION + text_field(row, "article")
    return Prompt(f"cnn_dm-{index:05d}", "summarization", (turn,), {"turn_1": highlights} if highlights else {})


_EAGLE = eagle80(
    "sum", "916876f0c42f938a944de96eed16e51425f29f27438cca5c9ef4737c0fedf771", asked("summarization", answers)
)

LOADER = Loader(
    variants={"eagle": Variant(each(from_row)), "eagle80": _EAGLE},
    published_sha256=_EAGLE.published_sha256,
    summed_files=_EAGLE.files,
    obtain=_EAGLE.obtain,
    licence="Apache-2.0",
)
