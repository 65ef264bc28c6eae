"""MT-Bench (Zheng et al. 2023, arXiv:2306.05685): 80 conversations of two turns in eight categories."""

from __future__ import annotations

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Loader, Prompt, Row, Variant, each, text_field
from talon_bench.prompts.question import answers, eagle80, question_id, turns

TURNS = 2
FIRST_ID = 81
"""Question ids run from here in the published order, which the hub's copy keeps while it replaces the ids by hashes."""

_SHA256 = "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7"


def from_row(row: Row, index: int) -> Prompt:
    """Both turns as they are. Takes FastChat's form (question_id, turns) and the hub's (prompt_id, prompt).

    `reference` maps "turn_1" and "turn_2" to the reference answers that the row has.
    """
    hub = "prompt" in row
    found = turns(row, "prompt" if hub else "turns")
    if len(found) != TURNS:
        raise UsageError(f"field '{'prompt' if hub else 'turns'}': expected {TURNS} turns, found {len(found)}")
    name = str(FIRST_ID + index) if hub else question_id(row)
    return Prompt(name, text_field(row, "category"), found, answers(row))


LOADER = Loader(
    variants={"plain": Variant(each(from_row)), "eagle80": eagle80("mt_bench", _SHA256, from_row)},
    published_sha256=frozenset({_SHA256}),
    obtain="take fastchat/llm_judge/data/mt_bench/question.jsonl from the project lm-sys/FastChat",
    licence="Apache-2.0",
)
