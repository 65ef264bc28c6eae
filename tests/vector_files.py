"""Logged runs of the official EAGLE code: where they lie, and how our trees are compared with theirs.

The folder is named by TALON_BENCH_VECTORS, else it is `../shared/vectors/eagle` next to the repository.
Its README states the format; nothing here knows the name of a head, a target or a prompt.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from talon_bench.drafters.base import Drafter
from talon_bench.drafters.checkpoint import load_head
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.head import DraftHead
from talon_bench.target import Target
from talon_bench.tree import TokenTree

_BESIDE = Path(__file__).resolve().parents[1].parent / "shared" / "vectors" / "eagle"
ROOT = Path(os.environ.get("TALON_BENCH_VECTORS") or _BESIDE)
RUNS = "eagle-differential-v1"
CASES = "eagle-posterior-cases-v1"

TIE = 1e-5
"""Below this gap in the head's log-probabilities the order of two candidates is rounding (the README)."""

SCORES = {"atol": 1e-4, "rtol": 0.0}
ENGINES = {"stock": {}, "fused": {"fuse_layers": True}, "packed": {"fuse_layers": True, "pack": True}}


def files(folder: str, pattern: str, file_format: str | None = None) -> list[Any]:
    """pytest parameters: the files of `ROOT/folder` that hold `file_format`, or one skipped parameter."""
    where = f"TALON_BENCH_VECTORS/{folder}"
    if not ROOT.is_dir():
        return [pytest.param(None, marks=pytest.mark.skip(reason="TALON_BENCH_VECTORS: no such folder"))]
    found = [
        path
        for path in sorted((ROOT / folder).glob(pattern))
        if file_format is None or read(path)["format"] == file_format
    ]
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"{where}: no {pattern} of this format"))]
    return [pytest.param(path, id=f"{folder}/{path.name.removesuffix(pattern[1:])}") for path in found]


@cache
def read(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def load_target(name: str, engine: str = "stock") -> Target:
    return _load_target(name, engine)


@cache
def _load_target(name: str, engine: str) -> Target:
    model = AutoModelForCausalLM.from_pretrained(ROOT / "targets" / name, dtype=torch.float32)
    return Target.wrap(model, name, **ENGINES[engine])


def load_draft_head(name: str, target_name: str, engine: str = "stock") -> DraftHead:
    """The head on the target that `load_target` gives for the same name and engine."""
    return _load_draft_head(name, target_name, engine)


@cache
def _load_draft_head(name: str, target_name: str, engine: str) -> DraftHead:
    target = load_target(target_name, engine)
    loaded = load_head(ROOT / "heads" / name, target.shape, name=name)
    head = {"eagle": Eagle1Head, "eagle3": Eagle3Head}[loaded.spec.kind](loaded, target)
    target.tap(head.spec.feature_layers)
    return head


class DraftPasses:
    """The passes of a draft head since the last `clear`: its `forward` is watched while a test runs.

    `calls` holds (arguments, outputs) with arguments as in `DraftHead.forward`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, head: DraftHead) -> None:
        self.calls: list[tuple[tuple, Tensor]] = []
        forward = head.forward

        def watched(*args: Any) -> Tensor:
            outputs = forward(*args)
            self.calls.append((args, outputs))
            return outputs

        monkeypatch.setattr(head, "forward", watched)

    def clear(self) -> None:
        self.calls.clear()

    def check(self, step: dict[str, Any]) -> None:
        """Compare number of passes and rows kept in the head's cache with those logged for one tree."""
        rows = self.calls[0][0][3]
        ours = {
            "n_draft_forwards": len(self.calls),
            "draft_kv_before": rows.start,
            "draft_kv_after": rows.stop,
            "n_features_fed": rows.stop - rows.start,
        }
        assert {key: ours[key] for key in ours if key in step} == {key: step[key] for key in ours if key in step}


def begin(target: Target, drafter: Drafter, prompt: list[int], room: int) -> Tensor:
    """Prefill as `decode.prefill` does, but leave the first token to the caller: logits [vocab]."""
    target.allocate(len(prompt) + room + drafter.budget)
    drafter.start(prompt, len(prompt) + room)
    logits = target.prefill(prompt)
    observe(target, drafter, prompt, list(range(len(prompt))))
    return logits


def observe(target: Target, drafter: Drafter, tokens: list[int], rows: list[int]) -> None:
    drafter.observe(tokens, target.features(drafter.feature_layers, torch.tensor(rows)))


def token_paths(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    """Root-to-node token path of every node."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def logged_tree(step: dict[str, Any]) -> TokenTree:
    """The tree of a step; a static-tree step gets its shape from the file and has no scores."""
    tokens = torch.tensor(step["draft_tokens"])
    scores = torch.tensor([0.0, *step["scores"]]) if "scores" in step else torch.zeros(len(tokens))
    depths = torch.tensor(step["depths"])
    return TokenTree(tokens, torch.tensor(step["parents"]), depths, scores, int(depths.max()))


def agreed_tree(ours: TokenTree, step: dict[str, Any]) -> TokenTree:
    """Assert that `ours` is the logged tree, and return the tree to verify.

    Where the file reports a tie, another order is right as well, and so is another candidate with what
    follows from it. Then every node that both trees have must agree, and the logged tree is returned, so
    that what comes after stays comparable.
    """
    logged = logged_tree(step)
    columns = ("tokens", "parents", "depths")
    same = all(torch.equal(getattr(ours, column), getattr(logged, column)) for column in columns)
    tied = min(step.get(gap, 1.0) for gap in ("beam_gap", "cut_gap", "draft_gap")) < TIE
    if same or not tied:
        for column in columns:
            assert getattr(ours, column).tolist() == getattr(logged, column).tolist(), column
        if "scores" in step:
            torch.testing.assert_close(ours.scores, logged.scores, **SCORES)
        return ours
    assert ours.size == logged.size
    ours_by_path, logged_by_path = _scores_by_path(ours), _scores_by_path(logged)
    common = [path for path in logged_by_path if path in ours_by_path]
    assert common
    if "scores" in step:
        assert [ours_by_path[path] for path in common] == pytest.approx(
            [logged_by_path[path] for path in common], abs=SCORES["atol"]
        )
    return ours if len(common) == logged.size else logged


def _scores_by_path(tree: TokenTree) -> dict[tuple[int, ...], float]:
    paths = token_paths(tree.tokens.tolist(), tree.parents.tolist())
    return dict(zip(paths, tree.scores.tolist(), strict=True))


def mask_of_hex(rows: list[str]) -> list[list[bool]]:
    """[nodes, nodes] from one hex number a row. Every node sees the root, so a leading bit is column 0."""
    bits = [bin(int(row, 16))[2:] for row in rows]
    assert all("1" not in row[len(rows) :] for row in bits)
    return [[bit == "1" for bit in row[: len(rows)]] for row in bits]
