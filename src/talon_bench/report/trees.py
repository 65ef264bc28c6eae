"""Draft trees of a run (`trees.parquet`) in the order in which they are drawn, for the tree explorer."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench.errors import UsageError
from talon_bench.metrics import KEYS
from talon_bench.report.load import RunData

LABEL_CELLS = 12
"""Longest label of a node, in character cells."""
_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
_COUNTS = ("draft_passes", "emitted", "nodes", "accepted")  # of the same verification, in rounds.parquet

AnswerKey = tuple[str, int, str]
"""(prompt_id, turn, method)"""


@dataclass(frozen=True)
class DraftTree:
    """One verification. Nodes stand in reading order: depth first; of siblings the accepted one first, then the more probable.

    The target's own token is one node more, right after the last accepted one and one layer deeper. So the first row of a
    drawing is what the verification emitted. A parent is the last node before with a smaller depth: depths hold the shape.
    """

    pieces: list[str]
    """Text of each node's token; node 0 is the root."""
    depths: list[int]
    probabilities: list[float | None]
    """Path probability of each node under the draft head; None for the target's own token."""
    accepted: list[int]
    """Node numbers of the accepted path, root first."""
    emitted: int
    """Tokens that reached the answer: the path below the root and the target's own token, less where the answer ends."""
    draft_passes: int

    @property
    def own(self) -> int:
        """Node number of the target's own token."""
        return self.accepted[-1] + 1

    @property
    def parents(self) -> list[int]:
        """Node number of each node's parent, -1 for the root."""
        last: dict[int, int] = {-1: -1}
        found = []
        for node, depth in enumerate(self.depths):
            found.append(last[depth - 1])
            last[depth] = node
        return found

    @property
    def rows(self) -> list[int]:
        """Row of each node in a drawing with a column per depth: a first child stays in its parent's row.

        No two nodes share a place, and lines from parents to children never cross.
        """
        found = [0]
        for before, depth in zip(self.depths, self.depths[1:], strict=False):
            found.append(found[-1] + (depth <= before))
        return found

    @property
    def answer_pieces(self) -> list[str]:
        """Texts of the tokens that the verification added to the answer."""
        return [self.pieces[node] for node in [*self.accepted[1:], self.own]][: self.emitted]


def load_trees(run: RunData) -> dict[AnswerKey, list[DraftTree]]:
    """The draft trees of each recorded answer, in round order; empty where the run kept none.

    Methods that draft nothing are left out. Raises UsageError for a damaged file, and for trees that contradict the rounds.
    """
    file = run.path / "trees.parquet"
    if not file.is_file():
        return {}
    try:
        trees = pq.read_table(file).to_pandas()
    except pa.ArrowException:
        raise UsageError(f"{file} is damaged: expected the table that a run writes, measure again") from None
    keys = [*KEYS, "round"]
    counts = run.rounds[[*keys, *_COUNTS]].astype({"prompt_id": str, "method": str})
    joined = trees.merge(counts, on=keys, how="left")
    wrong = (joined["tokens"].map(len) != joined["nodes"]) | (joined["path"].map(len) - 1 != joined["accepted"])
    if wrong.any():
        row = joined[wrong].iloc[0]
        raise UsageError(
            f"{file}: prompt {row['prompt_id']} turn {row['turn']} method {row['method']} round {row['round']} has a tree that "
            "rounds.parquet does not, expected the same nodes and path: the records are damaged, rerun"
        )
    drafting = [method for method, settings in run.methods.items() if settings["policy"] != "ar"]
    answers: dict[AnswerKey, list[DraftTree]] = {}
    for row in joined[joined["method"].isin(drafting)].sort_values("round", kind="stable").itertuples():
        answers.setdefault((row.prompt_id, row.turn, row.method), []).append(_arrange(row))
    places = {method: place for place, method in enumerate(drafting)}
    prompts = {prompt: place for place, prompt in enumerate(trees["prompt_id"].unique())}
    return dict(sorted(answers.items(), key=lambda item: (prompts[item[0][0]], item[0][1], places[item[0][2]])))


def answer_before(answer: Sequence[DraftTree], number: int) -> str:
    """Text of the answer before verification `number`, each token decoded alone; it begins with the prefill's token."""
    added = [piece for tree in answer[:number] for piece in tree.answer_pieces]
    return "".join([answer[0].pieces[0], *added])


def round_table(answer: Sequence[DraftTree]) -> pd.DataFrame:
    """One row per verification: draft passes, depth of the drafted tree, accepted nodes, text emitted."""
    frame = pd.DataFrame(
        {
            "draft passes": [tree.draft_passes for tree in answer],
            "depth": [max(depth for node, depth in enumerate(tree.depths) if node != tree.own) for tree in answer],
            "accepted": [len(tree.accepted) - 1 for tree in answer],
            "emitted": ["".join(tree.answer_pieces) for tree in answer],
        },
        index=pd.RangeIndex(len(answer), name="round"),
    )
    return frame.astype({"draft passes": "Int64", "depth": "Int64", "accepted": "Int64"})


def opening_pair(run: RunData, methods: Sequence[str]) -> tuple[str, str]:
    """Two of `methods` to look at first: TALON and, before it, what drafts on the same head with another policy."""
    adaptive = [method for method in methods if run.methods[method]["policy"] == "talon"]
    second = "talon" if "talon" in adaptive else (adaptive or list(methods))[-1]
    others = [method for method in methods if method != second]
    same_head = [method for method in others if run.methods[method]["head"] == run.methods[second]["head"]]
    rivals = [method for method in same_head if method not in adaptive]
    return next(iter([*rivals, *same_head, *others]), second), second


def label(piece: str, cells: int = LABEL_CELLS) -> str:
    """A token's text as a node's label: white space and control characters visible, at most `cells` cells wide."""
    text = "".join(_SIGNS.get(char) or (char if char.isprintable() else f"\\x{ord(char):02x}") for char in piece)
    if sum(map(_cells, text)) <= cells:
        return text or "∅"
    kept, used = "", 1
    for char in text:
        used += _cells(char)
        if used > cells:
            break
        kept += char
    return kept + "…"


def _cells(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _arrange(row: pd.Series) -> DraftTree:
    """A row of trees.parquet, nodes brought into reading order and the target's own token among them."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(row.parents):
        children.setdefault(int(parent), []).append(node)
    path, last = set(row.path), row.path[-1]
    order: list[tuple[int | None, int]] = []
    waiting: list[tuple[int | None, int]] = [(0, 0)]
    while waiting:
        node, depth = waiting.pop()
        order.append((node, depth))
        if node is not None:
            below = sorted(children.get(node, []), key=lambda child: (child in path, row.scores[child], -child))
            waiting += [(child, depth + 1) for child in below]
        if node == last:
            waiting.append((None, depth + 1))
    places = {node: place for place, (node, _) in enumerate(order)}
    return DraftTree(
        pieces=[row.next_piece if node is None else row.pieces[node] for node, _ in order],
        depths=[depth for _, depth in order],
        probabilities=[None if node is None else math.exp(row.scores[node]) for node, _ in order],
        accepted=[places[node] for node in row.path],
        emitted=int(row.emitted),
        draft_passes=int(row.draft_passes),
    )
