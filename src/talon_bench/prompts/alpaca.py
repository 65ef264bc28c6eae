"""Alpaca (Taori et al. 2023): instructions of the hub's full set, or the 80 that EAGLE measures."""

from __future__ import annotations

from collections.abc import Callable

from talon_bench.prompts.prompt import FromRow, Loader, Prompt, Row, Variant, each, optional_text, text_field
from talon_bench.prompts.question import answers, asked, eagle80, one_turn, question_id

_HEAD = "Below is an instruction that describes a task"
_ASK = "Write a response that appropriately completes the request.\n\n### Instruction:\n"


def eagle(instruction: str, given: str) -> str:
    """EAGLE's form: the instruction alone; its file has rows with an input, and never shows it."""
    return instruction


def with_input(instruction: str, given: str) -> str:
    """The instruction, and after a blank line its input, where it has one."""
    return f"{instruction}\n\n{given}" if given.strip() else instruction


def stanford(instruction: str, given: str) -> str:
    """The template that Alpaca itself was trained with."""
    if given.strip():
        context = f", paired with an input that provides further context. {_ASK}"
        return f"{_HEAD}{context}{instruction}\n\n### Input:\n{given}\n\n### Response:"
    return f"{_HEAD}. {_ASK}{instruction}\n\n### Response:"


def instruction(form: Callable[[str, str], str]) -> FromRow:
    """One turn in `form`, of the hub's rows (instruction, input, output) and of EAGLE's (question_id, turns)."""

    def from_row(row: Row, index: int) -> Prompt:
        if "turns" in row:
            return Prompt(question_id(row), "instruction", (form(one_turn(row), ""),), answers(row))
        output = optional_text(row, "output")
        turn = form(text_field(row, "instruction"), optional_text(row, "input"))
        return Prompt(f"alpaca-{index:05d}", "instruction", (turn,), {"turn_1": output} if output else {})

    return from_row


_EAGLE = eagle80(
    "alpaca", "8ad3e5a7fc61b88d8e25edb81a52a2ce00a04494d5694c122cb11a5cc26a00df", asked("instruction", answers)
)

LOADER = Loader(
    variants={
        "eagle": Variant(each(instruction(eagle))),
        "with_input": Variant(each(instruction(with_input))),
        "stanford": Variant(each(instruction(stanford))),
        "eagle80": _EAGLE,
    },
    published_sha256=_EAGLE.published_sha256,
    summed_files=_EAGLE.files,
    obtain=f"take alpaca_data.json from the project tatsu-lab/stanford_alpaca, or {_EAGLE.obtain.removeprefix('take ')}",
    licence="CC BY-NC 4.0",
)
