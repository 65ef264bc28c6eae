"""The final number of an answer, and its comparison with the reference."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring_data import shared_file
from talon_bench.scoring import SCORERS, ScoringConfig
from talon_bench.scoring.base import Answer, Score
from talon_bench.scoring.gsm8k import final_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", "18"),
        ("She has 3 left.\n#### 1,234", "1234"),
        ("#### 18\n\nQuestion: 7 birds and 9 cats?", "18"),
        ("a #### b\nthen\n#### 5", "5"),
        ("The marks #### come, and then 6 without one\n7", "7"),
        ("#### **18**", "18"),
        ("####  $18.", "18"),
        ("#### \\$18 a day", "18"),
        ("#### -5", "-5"),
        ("#### 36 ft^2\nin 2 rooms", "36"),
        ("#### 18. So she earns $19.", "19"),
        ("#### Step 1: Eggs left\n16-3-4=9\n#### Step 2: Money\n9*2=18\n\nThe answer is **$18**.", "18"),
        ("#### 1. Count the eggs\n16-7=9\n#### 2. Sell them\n9*2=18\n#### 18", "18"),
        ("#### 12) Count\nso 18", "18"),
        ("#### **3.** Count\nso 18", "18"),
        ("#### **3: Count**\nso 18", "18"),
        ("##### 5\nso 18", "18"),
        ("The answer is 18.\n\nQ: Tom has 5 cows and sells 2.\nA: 5-2=3. The answer is 3.", "18"),
        ("The answer is 18.\n  Question: 5 cows?\nAnswer: 5\n#### 5", "18"),
        ("Question: Tom has 5 cows.\nAnswer: 9", "9"),
        ("As asked:\nQ: How many of 5?\nIt is 9.", "9"),
        ("Is Q: 5 a question? 6", "6"),
        ("An area of 36 ft^2", "36"),
        ("36 m^{2}", "36"),
        ("36 m^{-2}, or 37 m^-12.", "37"),
        ("$36\\text{ cm}^{2}$ in all", "36"),
        ("36 ft^(2)", "36"),
        ("2^10 = 1024", "1024"),
        ("The answer is $1,234.50.", "1234.50"),
        ("The answer is -$5.", "-5"),
        ("The answer is $-5.", "-5"),
        ("It fell by \u22123 degrees", "-3"),
        ("so 10-4=6 and 12 - 9 = 3", "3"),
        ("a score of 10-4", "4"),
        ("(7)-2", "2"),
        ("That is 50%", "50"),
        ("That is 50 %.", "50"),
        ("\\boxed{42}", "42"),
        ("\\boxed{1{,}234}", "1234"),
        ("**18**", "18"),
        ("18.", "18"),
        ("1,2,3", "3"),
        ("12,5", "5"),
        ("1,234,567", "1234567"),
        ("1,2345", "2345"),
        ("a half, or .5", ".5"),
        ("3/4", "3/4"),
        ("one of 1/2", "1/2"),
        ("no number", None),
        ("", None),
        ("####", None),
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == number


@pytest.mark.parametrize(
    ("text", "final", "outcome"),
    [
        ("$18.00", "18", "passed"),
        ("018", "18", "passed"),
        ("18.01", "18", "wrong answer"),
        ("-18", "18", "wrong answer"),
        ("3/4", "0.75", "wrong answer"),
        ("3/4", "3/4", "passed"),
        ("9" * 5000, "18", "wrong answer"),
        ("none", "18", "no answer found"),
    ],
)
def test_numbers_are_compared_not_texts(text: str, final: str, outcome: str) -> None:
    scorer = SCORERS["gsm8k"](ScoringConfig(), None)
    answers = [Answer(text, {"answer": "", "final": final})]
    assert scorer.score(answers) == [Score(outcome == "passed", outcome, "final number")]
    assert scorer.guards() == {}


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{:,}", "{}", "${:,}", "{:,}.00", "{} dollars.", "**{:,}**."]))
def test_every_whole_number_is_read_back(number: int, form: str) -> None:
    (score,) = SCORERS["gsm8k"](ScoringConfig(), None).score(
        [Answer("First 7, then " + form.format(number), {"final": str(number)})]
    )
    assert score.correct


@given(
    st.lists(
        st.tuples(
            st.integers(0, 999),
            st.sampled_from(
                ["#### {}. First", "#### {}) First", "#### {}: First", "#### **{}. First**", "#### Step {}"]
            ),
        ),
        max_size=4,
    ),
    st.sampled_from(["The answer is 18.", "#### 18", "#### 18.", "#### **$18.00**", "It is 18 m^2."]),
    st.sampled_from(["", "\n\nQ: 7 cows?\nA: 7", "\n\nQuestion: 7 cows?\nAnswer: 7\n#### 7"]),
)
def test_neither_headings_nor_a_next_question_are_the_answer(
    headings: list[tuple[int, str]], answer: str, more: str
) -> None:
    text = "\n".join([*(form.format(number) for number, form in headings), answer]) + more
    (score,) = SCORERS["gsm8k"](ScoringConfig(), None).score([Answer(text, {"final": "18"})])
    assert score.correct, text


@given(st.text())
def test_any_text_gets_a_score(text: str) -> None:
    (score,) = SCORERS["gsm8k"](ScoringConfig(), None).score([Answer(text, {"final": "18"})])
    assert score.outcome in {"passed", "wrong answer", "no answer found"}


def test_the_reference_answers_score_100_percent() -> None:
    rows = [json.loads(line) for line in shared_file("gsm8k/test.jsonl").read_text(encoding="utf-8").splitlines()]
    answers = [
        Answer(row["answer"], {"final": row["answer"].rpartition("#### ")[2].replace(",", "").strip()}) for row in rows
    ]
    scores = SCORERS["gsm8k"](ScoringConfig(), None).score(answers)
    assert (len(scores), sum(score.correct for score in scores)) == (1319, 1319)
