"""What of an output is the answer, where a model thinks first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_bench.scoring.thinking import answer_in, opens_thinking
from test_chat import PLAIN, tokenizer

OPENS = PLAIN + "{% if add_generation_prompt %} <think>\n{% endif %}"
CLOSES = PLAIN + "{% if add_generation_prompt %} <think>\n\n</think>\n\n{% endif %}"
SWITCHED = PLAIN + "{% if enable_thinking is not defined or enable_thinking %} <think>\n{% endif %}"
SYSTEM_ONLY = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system') }}{% endif %}" + OPENS


@pytest.mark.parametrize(
    ("output", "opened", "answer"),
    [
        ("<think>\n9 + 9 = 17?\n</think>\n\nIt is 18.", False, "It is 18."),
        ("9 + 9 = 17?\n</think>\n\n    return 18", True, "    return 18"),
        ("9 + 9 = 17?\n</think>\n\nIt is 18.", False, "It is 18."),
        ("<think>a</think>1<think>b</think>2", False, "2"),
        ("<think>17", False, ""),
        ("\n<think>17", False, ""),
        ("17", True, ""),
        ("<think>17", True, ""),
        ("<think>a</think>\n18 <think>17", False, "18 "),
        ("It is 18.", False, "It is 18."),
        ("    return 18\n", False, "    return 18\n"),
        ("", False, ""),
        ("", True, ""),
    ],
)
def test_the_answer_is_what_follows_the_thoughts(output: str, opened: bool, answer: str) -> None:
    assert answer_in(output, opened=opened) == answer


@given(st.text(), st.text(alphabet="ab 18\n#`"), st.booleans())
def test_no_thought_is_ever_scored(thought: str, answer: str, opened: bool) -> None:
    begin = "" if opened else "<think>"
    assert answer_in(f"{begin}{thought}</think>{answer}", opened=opened) == answer.lstrip("\n")
    assert "17" not in answer_in(f"{begin}17{thought.replace('</think>', '')}", opened=opened)


@pytest.mark.parametrize(
    ("template", "config", "opened"),
    [
        (PLAIN, {}, False),
        (OPENS, {}, True),
        (CLOSES, {}, False),
        (SWITCHED, {"target": {"thinking": None}}, True),
        (SWITCHED, {"target": {"thinking": True}}, True),
        (SWITCHED, {"target": {"thinking": False}}, False),
        (PLAIN, {"target": {"chat_template": OPENS}}, True),
        (OPENS, {"target": {"chat_template": PLAIN}}, False),
        (SYSTEM_ONLY, {"dataset": {"system": "Be brief"}}, True),
    ],
)
def test_a_template_that_opens_the_thoughts_is_known(template: str, config: dict, opened: bool) -> None:
    assert opens_thinking(tokenizer(template), config) is opened
