"""Draft trees for the hand-made runs of `run_records`: one shape, every token's text its own, some texts hostile."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench.records import TREES

HOSTILE = "<script>alert(1)</script>"
CLOSING = "</script><!--"
SHARES = (1.0, 0.6, 0.3, 0.25)
PARENTS = (-1, 0, 0, 2)
PATH = (0, 2, 3)
"""The accepted nodes of a round that accepts both drafted layers: rank 1, then rank 0."""


def piece(method: str, prompt: str, number: int, node: int) -> str:
    """Text of a node; the root repeats what the round before ended with, the target's own token is node 4."""
    if node == 0:
        return "<s>" if number == 0 else piece(method, prompt, number - 1, 4)
    special = {1: HOSTILE, 3: CLOSING} if number == 0 else {1: " a\n\t"}
    return special.get(node, f" {method}{prompt}r{number}n{node}")


def tree_row(key: dict, accepted: int) -> dict:
    """A row of trees.parquet that fits a round of `run_records.records`."""
    names = (key["method"], key["prompt_id"], key["round"])
    drafted = key["method"] not in ("ar", "ar_again")
    nodes = range(4 if drafted else 1)
    return key | {
        "tokens": [100 + node for node in nodes],
        "pieces": [piece(*names, node) for node in nodes],
        "parents": [PARENTS[node] for node in nodes],
        "scores": [math.log(SHARES[node]) for node in nodes],
        "path": list(PATH[: accepted + 1]),
        "next_token": 104,
        "next_piece": piece(*names, 4),
    }


def write_trees(folder: Path, prompts: int = 2) -> Path:
    """Adds trees.parquet of the first prompts to a run folder of `run_records.write_run`; returns the folder."""
    rounds = pq.read_table(folder / "rounds.parquet").to_pylist()
    first = list(dict.fromkeys(row["prompt_id"] for row in rounds))[:prompts]
    rows = [
        tree_row({name: row[name] for name in ("prompt_id", "turn", "method", "round")}, row["accepted"])
        for row in rounds
        if row["prompt_id"] in first
    ]
    pq.write_table(pa.Table.from_pylist(rows, TREES), folder / "trees.parquet")
    return folder
