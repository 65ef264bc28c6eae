"""Sampled runs of the official EAGLE code on the draws it consumed, and stand-alone acceptance cases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from talon_bench.clock import PhaseClock
from talon_bench.drafters.session import HeadDrafter
from talon_bench.policies import Eagle
from talon_bench.sampling import Sampler
from talon_bench.tree import TokenTree
from talon_bench.verify import walk
from vector_files import (
    CASES,
    RUNS,
    DraftPasses,
    agreed_tree,
    begin,
    files,
    load_draft_head,
    load_target,
    observe,
    read,
)

PROBABILITY = 1e-5
"""Tolerance on a probability; the files round to six decimals."""


def sampler_of(settings: dict[str, Any], top_k: int = 0) -> Sampler:
    """The files write 0 where a filter is off."""
    return Sampler(settings["temperature"], settings["top_p"] or 1.0, top_k)


def check_acceptance(tree: TokenTree, logits: Tensor, sampler: Sampler, step: dict[str, Any]) -> list[int]:
    """The walk on the logged draws must take the logged path by the logged probabilities: the path."""
    by_node = sampler.probabilities(logits)
    draws = iter(step["r"])
    path, rest = walk(tree, by_node.__getitem__, draws.__next__)
    assert list(draws) == []
    assert tree.tokens[path].tolist() == step["accepted_tokens"]
    assert len(path) - 1 == step["accept_length"]
    check_thresholds(tree, by_node.__getitem__, step["r"], step["p_accept"])
    assert float(rest.sum()) == pytest.approx(1.0, abs=1e-12)
    if step.get("sample_p") is not None:
        torch.testing.assert_close(rest, torch.tensor(step["sample_p"]).double(), atol=PROBABILITY, rtol=0.0)
    if "next_root" in step:
        assert float(rest[step["next_root"]]) == pytest.approx(step["p_next_root"], abs=PROBABILITY)
    return path


def check_thresholds(
    tree: TokenTree, probabilities: Callable[[int], Tensor], draws: list[float], p_accept: list[float]
) -> None:
    """A draw just under the logged probability accepts, one just over it rejects."""
    for tried, p in enumerate(p_accept):
        before = draws[:tried]
        looked_at = nodes_entered(tree, probabilities, before)
        if p > PROBABILITY:
            assert nodes_entered(tree, probabilities, [*before, p - PROBABILITY]) == looked_at + 1
        if p < 1 - PROBABILITY:
            assert nodes_entered(tree, probabilities, [*before, p + PROBABILITY]) == looked_at


def nodes_entered(tree: TokenTree, probabilities: Callable[[int], Tensor], draws: list[float]) -> int:
    """How many nodes, the root included, the walk stands on before it asks for more than `draws`."""
    entered = 0

    def enter(node: int) -> Tensor:
        nonlocal entered
        entered += 1
        return probabilities(node)

    with suppress(StopIteration):
        walk(tree, enter, iter(draws).__next__)
    return entered


@pytest.mark.parametrize("path", files("sampling", "*.json.gz", RUNS))
@torch.inference_mode()
def test_vectors_sampling_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = read(path)
    target, head = load_target(logged["target"]), load_draft_head(logged["head"], logged["target"])
    passes = DraftPasses(monkeypatch, head)
    for run in logged["runs"]:
        sampler = sampler_of(run)
        drafter = HeadDrafter(head, Eagle(run["total_token"], run["depth"] + 1, run["top_k"]))
        first = begin(target, drafter, run["prompt"], len(run["output"]) + 1)
        root, output = run["first_root"], []
        assert sampler.probabilities(first)[root] > 0
        for step, accept_length in zip(run["steps"], run["accept_lengths"], strict=True):
            assert target.cache.length == step["input_len"]
            passes.clear()
            ours = drafter.propose(root, PhaseClock())
            passes.check(step)
            tree = agreed_tree(ours, step)
            logits = target.verify(tree.tokens, tree.depths, tree.ancestor_mask())
            accepted = check_acceptance(tree, logits, sampler, step)
            assert len(accepted) - 1 == accept_length
            target.commit(accepted)
            new = tree.tokens[accepted].tolist()
            observe(target, drafter, new, accepted)
            output += new
            root = step["next_root"]
        assert output == run["output"]


@pytest.mark.parametrize("path", files("sampling", "*.json.gz", CASES))
def test_vectors_sampling_acceptance_cases(path: Path) -> None:
    cases = read(path)["cases"]
    assert cases
    for case in cases:
        depths: list[int] = []
        for parent in case["parents"]:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        tokens, parents = torch.tensor(case["draft_tokens"]), torch.tensor(case["parents"])
        tree = TokenTree(tokens, parents, torch.tensor(depths), torch.zeros(len(depths)), max(depths))
        check_acceptance(tree, torch.tensor(case["node_logits"]), sampler_of(case, case["top_k"]), case)
