"""The draft tree: what a policy grows, the target verifies and the acceptance rule walks. No model, no clock."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from talon_bench.transfer import to_device


@dataclass(frozen=True)
class TokenTree:
    """A tree of drafted tokens under the last emitted token (the root, node 0).

    All tensors are [nodes]; a node's parent comes before it. No node is deeper than `num_layers`.
    """

    tokens: Tensor
    """int64, target ids."""
    parents: Tensor
    """int64, node numbers; the root's is -1."""
    depths: Tensor
    """int64, 0 for the root."""
    scores: Tensor
    """float32, log of the path probability under the draft head; 0 for the root."""
    num_layers: int

    @property
    def size(self) -> int:
        """Number of nodes, root included: the budget that the tree used."""
        return self.tokens.shape[0]

    def ancestor_mask(self) -> Tensor:
        """bool [nodes, nodes]: row i marks the nodes that node i may attend to, its ancestors and itself.

        Pointer jumping: after step j every row reaches 2^j - 1 generations up, so log2(depth) steps close it.
        """
        mask = torch.eye(self.size, dtype=torch.bool, device=self.tokens.device)
        hop = self.parents.clamp(min=0)
        reached = 1
        while reached <= self.num_layers:
            mask = mask | mask[hop]
            hop = hop[hop]
            reached *= 2
        return mask

    def widths(self) -> list[int]:
        """Drafted nodes in each layer, depth 1 first, up to the deepest layer that has any."""
        return torch.bincount(self.depths)[1:].tolist()

    def ranks(self, nodes: list[int]) -> list[int]:
        """0-based rank by score of each node inside its layer; among equal scores the earlier node is first."""
        index = torch.tensor(nodes, dtype=torch.long, device=self.tokens.device)
        same_layer = self.depths[index][:, None] == self.depths
        score = self.scores[index][:, None]
        position = torch.arange(self.size, device=self.tokens.device)
        better = (self.scores > score) | ((self.scores == score) & (position < index[:, None]))
        return (same_layer & better).sum(dim=1).tolist()


def root_only(token: int, device: torch.device | str = "cpu") -> TokenTree:
    """The tree with nothing drafted: its verification is a plain decoding step."""
    return from_layers(token, [], device=device)


def from_layers(
    root: int, layers: list[tuple[Tensor, Tensor, Tensor]], *, device: torch.device | str = "cpu"
) -> TokenTree:
    """Join layers of (tokens, parents, scores), each [width], parents being node numbers, into a tree."""
    widths = [1, *(tokens.shape[0] for tokens, _, _ in layers)]
    return TokenTree(
        tokens=torch.cat([torch.full((1,), root, device=device), *(tokens for tokens, _, _ in layers)]),
        parents=torch.cat([torch.full((1,), -1, device=device), *(parents for _, parents, _ in layers)]),
        depths=to_device([depth for depth, width in enumerate(widths) for _ in range(width)], device),
        scores=torch.cat([torch.zeros(1, device=device), *(scores for _, _, scores in layers)]),
        num_layers=len(layers),
    )
