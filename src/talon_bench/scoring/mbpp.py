"""MBPP (Austin et al. 2021, arXiv:2108.07732): pass@1 on each problem's tests; its challenge tests are not counted."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

from talon_bench.scoring.base import Answer
from talon_bench.scoring.code import CodeScorer
from talon_bench.scoring.config import ScoringConfig
from talon_bench.scoring.extract import python_of
from talon_bench.scoring.sandbox import Program

BEGIN, DONE = "[BEGIN]", "[DONE]"
"""Marks around a solution in the paper's few-shot form."""


def make_scorer(config: ScoringConfig, root: Path | None) -> CodeScorer:
    return CodeScorer.make(program_of, config)


def program_of(answer: Answer) -> Program | None:
    """The answer's code, then the problem's setup and tests; None where the answer is empty."""
    problem = answer.reference
    text = answer.text.split(DONE)[0].rpartition(BEGIN)[2]
    code = python_of(text, called_names(problem["tests"]))
    if not code.strip():
        return None
    return [code, f"{problem['setup']}\n{problem['tests']}"]


def called_names(tests: str) -> list[str]:
    """Functions that the tests call by name, the builtins' names last: a solution may have one of those too."""
    calls = (node.func for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Call))
    names = dict.fromkeys(function.id for function in calls if isinstance(function, ast.Name))
    return sorted(names, key=lambda name: hasattr(builtins, name))
