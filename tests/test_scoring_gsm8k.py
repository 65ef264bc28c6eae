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
        ("The marks #### come, and then 6 without one\n7", "6"),
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
