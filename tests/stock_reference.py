"""What an untouched transformers model says of a sequence or a tree, and the target held against it."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.target import Target
from talon_bench.tree import TokenTree
from toys import LAYERS, VOCAB_SIZE

PROMPT = [3, 40, 17, 93, 8, 62, 55, 31, 77, 5, 24]
PARENTS = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 7, 8]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def tree_of(parents: list[int], seed: int = 0) -> TokenTree:
    """A tree of this shape with random tokens."""
    generator = torch.Generator().manual_seed(seed)
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return TokenTree(
        tokens=torch.randint(VOCAB_SIZE, (len(parents),), generator=generator),
        parents=torch.tensor(parents),
        depths=torch.tensor(depths),
        scores=torch.zeros(len(parents)),
        num_layers=max(depths),
    )


def path_to(parents: list[int], node: int) -> list[int]:
    """Node numbers from the root to `node`."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@torch.inference_mode()
def from_scratch(model: torch.nn.Module, ids: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(logits [n, vocab], hidden states [n, hidden] entering layer 0, 1, ... and after the final norm)."""
    out = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return out.logits[0], tuple(states[0] for states in out.hidden_states)


def assert_verifies(target: Target, model: torch.nn.Module, committed: list[int], tree: TokenTree) -> None:
    """One tree pass gives each node the logits and features of its own path, run alone."""
    layers = (2, LAYERS // 2, LAYERS - 3)
    target.tap(layers)
    parents = tree.parents.tolist()
    logits = target.verify(tree.tokens, tree.depths, tree.ancestor_mask() if tree.size > 1 else None)
    nodes = torch.arange(tree.size)
    low_to_high, final = target.features(layers, nodes), target.features((), nodes)
    assert logits.dtype is torch.float32
    for node in range(tree.size):
        path = tree.tokens[path_to(parents, node)].tolist()
        expected, states = from_scratch(model, committed + path)
        torch.testing.assert_close(logits[node], expected[-1], **CLOSE)
        entering = torch.cat([states[layer][-1] for layer in layers])
        torch.testing.assert_close(low_to_high[node], entering, **CLOSE)
        torch.testing.assert_close(final[node], states[-1][-1], **CLOSE)


def assert_rounds_verify(target: Target, model: torch.nn.Module) -> None:
    """Behind the prefilled `PROMPT`, rounds of verification and commit, the last over a single node."""
    committed = list(PROMPT)
    for turn, node in enumerate((9, 0, 6)):
        tree = tree_of(PARENTS, turn)
        assert_verifies(target, model, committed, tree)
        path = path_to(PARENTS, node)
        target.commit(path)
        committed += tree.tokens[path].tolist()
    assert_verifies(target, model, committed, tree_of([-1]))
