"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168): 1,319 grade-school word problems of its test split."""

from __future__ import annotations

import re

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Loader, Prompt, Row, text_field

_FINAL = re.compile(r"####\s*(-?\d[\d,]*(?:\.\d+)?)\s*$")


def from_row(row: Row, index: int) -> Prompt:
    """The bare question, zero-shot, as EAGLE asks it. The id holds the row's index in its file.

    `reference`: "answer", the worked answer; "final", the number after "####", without thousands separators.
    """
    answer = text_field(row, "answer")
    final = _FINAL.search(answer)
    if final is None:
        raise UsageError("field 'answer': expected '#### <number>' at its end, found none")
    reference = {"answer": answer, "final": final[1].replace(",", "")}
    return Prompt(f"gsm8k-{index:04d}", "math", (text_field(row, "question"),), reference)


LOADER = Loader(
    from_row=from_row,
    published_sha256=frozenset({"3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"}),
    obtain="take grade_school_math/data/test.jsonl from the project openai/grade-school-math",
)
