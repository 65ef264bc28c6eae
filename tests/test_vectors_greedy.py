"""Greedy runs of the official EAGLE code, step by step: same trees, accepted lengths and output ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, Round, decode
from talon_bench.drafters.base import Drafter, NoDrafter
from talon_bench.drafters.session import HeadDrafter
from talon_bench.policies import Eagle, Static
from talon_bench.sampling import Sampler
from talon_bench.target import Target
from talon_bench.tree import TokenTree
from vector_files import (
    RUNS,
    SCORES,
    TIE,
    DraftPasses,
    agreed_tree,
    files,
    load_draft_head,
    load_target,
    logged_tree,
    mask_of_hex,
    read,
    token_paths,
)

GREEDY = files("greedy", "*.json.gz", RUNS)
STATIC = files("static-tree", "*.json.gz", RUNS)
EDGE = files("edge", "*.json.gz", RUNS)


class Logged:
    """A drafter that is compared with the log and hands over the tree that `choose` makes of both."""

    def __init__(
        self,
        inner: HeadDrafter,
        steps: list[dict[str, Any]],
        passes: DraftPasses,
        choose: Callable[[TokenTree, dict[str, Any]], TokenTree],
    ) -> None:
        self._inner = inner
        self._steps = iter(steps)
        self._watched = passes
        self._choose = choose
        self.budget, self.feature_layers = inner.budget, inner.feature_layers
        self.start, self.observe = inner.start, inner.observe

    @property
    def passes(self) -> int:
        return self._inner.passes

    def propose(self, root: int, clock: PhaseClock) -> TokenTree:
        step = next(self._steps)
        self._watched.clear()
        self.own = self._inner.propose(root, clock)
        self._watched.check(step)
        if "tree_mask_rows_hex" in step:
            # The logged mask belongs to the logged tree, whose nodes may be ordered otherwise at a tie.
            assert logged_tree(step).ancestor_mask().tolist() == mask_of_hex(step["tree_mask_rows_hex"])
        return self._choose(self.own, step)


def rounds_of(target: Target, drafter: Drafter, prompt: list[int], answer: Answer) -> Iterator[Round]:
    return decode(
        target,
        drafter,
        prompt,
        answer,
        sampler=Sampler(),
        generator=torch.Generator(),
        clock=PhaseClock(),
    )


def replay(
    drafter: HeadDrafter,
    logged: dict[str, Any],
    run: dict[str, Any],
    passes: DraftPasses,
    choose: Callable[[TokenTree, dict[str, Any]], TokenTree] = agreed_tree,
) -> Iterator[tuple[dict[str, Any], TokenTree]]:
    """Decode `run` for as many rounds as were logged, compare each, and yield its step with our own tree.

    The official loop does not cut its output, so neither does this.
    """
    answer = Answer(frozenset(), len(run["output"]) + 2)
    drafter = Logged(drafter, run["steps"], passes, choose)
    rounds = rounds_of(load_target(logged["target"]), drafter, run["prompt"], answer)
    for number, (step, accept_length) in enumerate(zip(run["steps"], run["accept_lengths"], strict=True)):
        where = f"prompt {run['prompt_id']}, step {number}"
        found = next(rounds)
        assert found.context == step["input_len"], where
        assert found.draft_passes == step["n_draft_forwards"], where
        assert found.tree.tokens[found.path].tolist() == step["accepted_tokens"], where
        assert len(found.path) - 1 == step["accept_length"] == accept_length, where
        assert answer.ids[-1] == step["next_root"], where
        yield step, drafter.own
    assert answer.ids[:-1] == run["output"]
    assert answer.stop is None


def eagle_policy(run: dict[str, Any]) -> Eagle:
    return Eagle(budget=run["total_token"], depth=run["depth"] + 1, top_k=run["top_k"])


@pytest.mark.parametrize("path", GREEDY)
def test_vectors_greedy_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = read(path)
    head = load_draft_head(logged["head"], logged["target"])
    passes = DraftPasses(monkeypatch, head)
    for run in logged["runs"]:
        for _, ours in replay(HeadDrafter(head, eagle_policy(run)), logged, run, passes):
            assert ours.num_layers == run["depth"] + 1


@pytest.mark.parametrize("path", STATIC)
def test_vectors_static_tree_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees, outcomes and tables of ranked tokens: the root's row, then one for each node fed, in order."""
    logged = read(path)
    head = load_draft_head(logged["head"], logged["target"])
    passes = DraftPasses(monkeypatch, head)
    shape = {"parents": logged["parents"], "depths": logged["depths"]}
    for run in logged["runs"]:
        drafter = Recorded(head, Static(logged["tree_choices"]))
        shaped = {**run, "steps": [{**step, **shape} for step in run["steps"]]}
        for step, _ in replay(drafter, logged, shaped, passes):
            assert [rows.shape[0] for rows in drafter.expanded] == logged["draft_expand_counts"]
            table = step["topk_table"]
            if table is not None and step["draft_gap"] >= TIE:
                ranked = drafter.log_probs().topk(len(table[0])).indices
                assert head.to_target(ranked).tolist() == table


@cache
def plain_ids(target_name: str, prompt: tuple[int, ...], eos: int | None, cap: int) -> list[int]:
    """Output of plain decoding, which no draft head influences."""
    target = load_target(target_name)
    answer = Answer(frozenset() if eos is None else frozenset({eos}), cap)
    for _ in rounds_of(target, NoDrafter(target.device), list(prompt), answer):
        pass
    return answer.ids


@pytest.mark.parametrize("path", [*GREEDY, *STATIC, *EDGE])
def test_vectors_plain_decoding(path: Path) -> None:
    logged = read(path)
    for run in logged["runs"]:
        eos, cap = run.get("eos_token_id"), run["max_new_tokens"] + 1
        assert plain_ids(logged["target"], tuple(run["prompt"]), eos, cap) == run["naive"]


@pytest.mark.parametrize("path", GREEDY)
def test_vectors_answers_cut_at_eos(path: Path) -> None:
    """Where the official chunk runs past an EOS, our answer ends with it."""
    logged = read(path)
    target, head = load_target(logged["target"]), load_draft_head(logged["head"], logged["target"])
    for run in logged["runs"]:
        eos = run["eos_token_id"]
        if eos is None:
            continue
        answer = Answer(frozenset({eos}), run["max_new_tokens"] + 1)
        for _ in rounds_of(target, HeadDrafter(head, eagle_policy(run)), run["prompt"], answer):
            pass
        assert answer.ids == run["naive"] == run["output"][: len(run["naive"])]
        assert answer.stop == ("eos" if eos in run["naive"] else "cap")


class Recorded(HeadDrafter):
    """A drafter that keeps each round's distributions, and whose they are: the nodes in feeding order."""

    def root_log_probs(self) -> Tensor:
        first = super().root_log_probs()
        self.root_row = first.clone()
        self.expanded: list[Tensor] = []
        self.fed_paths = [(self.root,)]
        return first

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        rows = super().expand(tokens, parents)
        self.expanded.append(rows.clone())
        paths = [
            (*self.fed_paths[parent + 1], token)
            for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True)
        ]
        self.fed_paths += paths
        return rows

    def log_probs(self) -> Tensor:
        """[1 + fed, draft vocab]: the root's row, then one for each node fed."""
        return torch.cat([self.root_row[None], *self.expanded])


def misplaced(tree: TokenTree, drafter: Recorded) -> list[int]:
    """Nodes whose score is not their parent's plus the head's log-probability after that parent."""
    rows = drafter.log_probs()
    by_target_id = torch.full((len(rows), drafter.head.spec.vocab_size), float("-inf"))
    by_target_id[:, drafter.to_target(torch.arange(rows.shape[1]))] = rows
    row_of = {path: row for row, path in enumerate(drafter.fed_paths)}
    tokens, parents, scores = tree.tokens.tolist(), tree.parents.tolist(), tree.scores.tolist()
    paths = token_paths(tokens, parents)
    wrong = []
    for node in range(1, tree.size):
        row = row_of.get(paths[parents[node]])
        expected = scores[parents[node]] + float(by_target_id[row, tokens[node]]) if row is not None else None
        if scores[node] != pytest.approx(expected, abs=SCORES["atol"]):
            wrong.append(node)
    return wrong


@pytest.mark.parametrize("path", EDGE)
def test_vectors_edge_trees_keep_every_parent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tied scores make the official code hang an orphan under a stranger, ours keep their own parents.

    Saturated heads magnify rounding a thousandfold, so our scores are compared with nothing but ours.
    """
    logged = read(path)
    head = load_draft_head(logged["head"], logged["target"])
    passes = DraftPasses(monkeypatch, head)
    orphans_met = 0
    for run in logged["runs"]:
        drafter = Recorded(head, eagle_policy(run))
        for step, ours in replay(drafter, logged, run, passes, lambda _, step: logged_tree(step)):
            assert ours.size == len(step["draft_tokens"])
            assert misplaced(ours, drafter) == []
            orphans = step.get("orphans") or []
            orphans_met += len(orphans)
            assert set(orphans) <= set(misplaced(logged_tree(step), drafter))
    assert orphans_met > 0


@pytest.mark.parametrize("path", EDGE)
def test_vectors_edge_output_is_lossless(path: Path) -> None:
    logged = read(path)
    target, head = load_target(logged["target"]), load_draft_head(logged["head"], logged["target"])
    for run in logged["runs"]:
        answer = Answer(frozenset(), run["max_new_tokens"] + 1)
        for _ in rounds_of(target, HeadDrafter(head, eagle_policy(run)), run["prompt"], answer):
            pass
        assert answer.ids == run["naive"]
