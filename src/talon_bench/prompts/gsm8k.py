"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168): 1,319 grade-school word problems of its test split."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from talon_bench.errors import UsageError
from talon_bench.prompts import gsm8k_cot
from talon_bench.prompts.prompt import FromRow, Loader, Prompt, Row, Variant, each, text_field, texts_field
from talon_bench.prompts.question import asked, eagle80

SHOWN = 5
"""Rows at the head of the test file that SpecForge and sglang show as worked examples."""

_FINAL = re.compile(r"####\s*(-?\d[\d,]*(?:\.\d+)?)\s*$")


def references(answer: str, name: str = "answer") -> dict[str, str]:
    """ "answer", the worked answer; "final", the number after "####", without thousands separators."""
    final = _FINAL.search(answer)
    if final is None:
        raise UsageError(f"field '{name}': expected '#### <number>' at its end, found none")
    return {"answer": answer, "final": final[1].replace(",", "")}


def question(form: Callable[[str], str]) -> FromRow:
    """One turn, the row's question in `form`. The id holds the row's index in its file."""

    def from_row(row: Row, index: int) -> Prompt:
        reference = references(text_field(row, "answer"))
        return Prompt(f"gsm8k-{index:04d}", "math", (form(text_field(row, "question")),), reference)

    return from_row


def sglang5(rows: Sequence[Row]) -> FromRow:
    """SpecForge's and sglang's completion form. Its examples are rows of the test file, so those five are not asked."""
    ask = question(lambda text: f"{_examples(rows)}Question: {text}\nAnswer:")
    check = question(str)

    def from_row(row: Row, index: int) -> Prompt | None:
        if index >= SHOWN:
            return ask(row, index)
        check(row, index)
        return None

    return from_row


def _examples(rows: Sequence[Row]) -> str:
    return "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows[:SHOWN])


def _first_reference(row: Row) -> dict[str, str]:
    return references((*texts_field(row, "reference"), "")[0], "reference")


_MATH = asked("math", _first_reference)
"""Rows of EAGLE's and Spec-Bench's files."""


def spec_bench(row: Row, index: int) -> Prompt | None:
    """Spec-Bench's 80 questions: the rows of its math_reasoning task."""
    return _MATH(row, index) if row.get("category") == "math_reasoning" else None


LOADER = Loader(
    variants={
        "bare": Variant(each(question(str))),
        "cot8": Variant(each(question(lambda text: f"{gsm8k_cot.PREFIX}Q: {text}\nA:"))),
        "sglang5": Variant(sglang5),
        "spec_bench": Variant(
            each(spec_bench),
            files=("spec_bench/question.jsonl",),
            published_sha256=frozenset({"4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"}),
            obtain="take data/spec_bench/question.jsonl from the project hemingkx/Spec-Bench",
        ),
        "eagle80": eagle80("gsm8k", "a55920b2f2aac724241124c59e5b8e8168dbbeb2ab0fdbee17d5b0ab6db5ff27", _MATH),
    },
    published_sha256=frozenset({"3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"}),
    obtain="take grade_school_math/data/test.jsonl from the project openai/grade-school-math",
    licence="MIT",
)
