"""What HumanEval and MBPP share: answers become programs, and the sandbox runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from talon_bench.scoring.base import Answer, Score
from talon_bench.scoring.config import ScoringConfig
from talon_bench.scoring.sandbox import Limits, Program, Sandbox


class CodeScorer:
    """`program_of` gives what to run for an answer; None where the answer has no code."""

    name = "pass@1"

    def __init__(self, program_of: Callable[[Answer], Program | None], sandbox: Sandbox) -> None:
        self._program_of = program_of
        self._sandbox = sandbox

    @classmethod
    def make(cls, program_of: Callable[[Answer], Program | None], config: ScoringConfig) -> CodeScorer:
        return cls(program_of, Sandbox(Limits(config.timeout_s, config.memory_mb), config.workers))

    def guards(self) -> dict[str, bool]:
        return self._sandbox.guards()

    def score(self, answers: Sequence[Answer]) -> list[Score]:
        programs = [self._program_of(answer) for answer in answers]
        outcomes = iter(self._sandbox.run([program for program in programs if program is not None]))
        found = ["no answer found" if program is None else next(outcomes) for program in programs]
        return [Score(outcome == "passed", outcome, "tests") for outcome in found]
