"""Spec-Bench (Xia et al. 2024, arXiv:2401.07851): 480 prompts, 80 of each of six tasks."""

from __future__ import annotations

from dataclasses import replace

from talon_bench.prompts.prompt import Loader, Prompt, Row, Variant, each
from talon_bench.prompts.question import plain

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


def from_row(row: Row, index: int) -> Prompt:
    """The turns as they are. The category is the task; MT-Bench's eight categories are the one task "mt_bench"."""
    prompt = plain(row, index)
    return prompt if prompt.category in TASKS else replace(prompt, category="mt_bench")


LOADER = Loader(
    variants={"plain": Variant(each(from_row))},
    published_sha256=frozenset({"4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"}),
    obtain="take data/spec_bench/question.jsonl from the project hemingkx/Spec-Bench",
    licence="Apache-2.0; its parts keep their own",
)
