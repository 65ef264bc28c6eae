"""What every scorer takes and gives: answers with their references in, one verdict each out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """One answer to score: `text` is the decoded output, special tokens removed; `reference` is its prompt's."""

    text: str
    reference: Mapping[str, str]


@dataclass(frozen=True)
class Score:
    """One verdict.

    `outcome` is short and of few kinds ("passed", "wrong answer", "error: NameError", "timed out"); `how` names what
    decided ("final number", "tests", "execution", "exact set").
    """

    correct: bool
    outcome: str
    how: str


class Scorer(Protocol):
    """The measure of one data set. `name` is what its share of correct answers is called, e.g. "pass@1"."""

    name: str

    def score(self, answers: Sequence[Answer]) -> list[Score]:
        """One score per answer, in the same order; a bad answer is a failed score, never an exception."""
        ...

    def guards(self) -> dict[str, bool]:
        """Which guards hold what is executed, by name; {} where nothing is executed."""
        ...
