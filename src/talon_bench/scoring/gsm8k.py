"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168): exact match of the final number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from talon_bench.scoring.base import Answer, Score
from talon_bench.scoring.config import ScoringConfig

_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-\u2212])?(?:[$\u20ac\u00a3](?P<inner>[-\u2212])?)?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?P<below>/[0-9]+)?"
)
"""With a minus sign or hyphen before or behind a currency sign, where it is not between two terms; thousands in threes."""
_MARK = re.compile(r"####[ \t*\\]*")
_HEADING = re.compile(r"\**[.):]\**[ \t]*[^\s*]")
"""What follows the number of a heading, which Markdown marks as GSM8K marks an answer: "1. First", "1) First", "1: First"."""
_EXPONENT = re.compile(r"\^(?:\{[^{}]*\}|\([^()]*\)|[-\u2212]?[0-9]+(?:\.[0-9]+)?)")
_NEXT_QUESTION = re.compile(r"^[ \t]*Q(?:uestion)?:", re.MULTILINE)
"""Where a model goes on with a question of its own, as few-shot forms show them."""


def make_scorer(config: ScoringConfig, root: Path | None) -> FinalNumberScorer:
    return FinalNumberScorer()


class FinalNumberScorer:
    """Compares numbers, not texts: 18, 18.0 and $18.00 are one."""

    name = "exact match"

    def guards(self) -> dict[str, bool]:
        """None: nothing is executed."""
        return {}

    def score(self, answers: Sequence[Answer]) -> list[Score]:
        return [_score(final_number(answer.text), answer.reference["final"]) for answer in answers]


def final_number(text: str) -> str | None:
    """The number directly behind the first "####" that has one, else the last of the text; None without any.

    What follows a line that starts with "Q:" or "Question:" counts only where no number comes before it. Numbers of headings
    and exponents never count. Without thousands separators, currency or percent; a fraction a/b stays as it is.
    """
    text = _EXPONENT.sub("", text.replace("{,}", ","))
    numbers = (_marked(part) or _last(part) for part in _NEXT_QUESTION.split(text))
    found = next(filter(None, numbers), None)
    return _plain(found) if found else None


def _marked(text: str) -> re.Match[str] | None:
    for mark in _MARK.finditer(text):
        found = _NUMBER.match(text, mark.end())
        if found and not _HEADING.match(text, found.end()):
            return found
    return None


def _last(text: str) -> re.Match[str] | None:
    numbers = list(_NUMBER.finditer(text))
    return numbers[-1] if numbers else None


def _plain(found: re.Match[str]) -> str:
    sign = "-" if found["sign"] or found["inner"] else ""
    return sign + found["digits"].replace(",", "") + (found["below"] or "")


def _score(found: str | None, expected: str) -> Score:
    if found is None:
        return Score(False, "no answer found", "final number")
    equal = _same(found, expected)
    return Score(equal, "passed" if equal else "wrong answer", "final number")


def _same(found: str, expected: str) -> bool:
    try:
        return Decimal(found) == Decimal(expected)
    except InvalidOperation:
        return found == expected
