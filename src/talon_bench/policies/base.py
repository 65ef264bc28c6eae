"""The seam between a tree policy and whatever drafts for it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from talon_bench.tree import TokenTree


class Draft(Protocol):
    """One round of drafting, as a policy sees it. Distributions are over the draft vocabulary (size V)."""

    root: int
    """Target id of the last emitted token."""

    queued: bool
    """Whether work is queued on a device: then a policy reads at most one number of each layer, for each read waits."""

    def root_log_probs(self) -> Tensor:
        """float32 [V]: log-probabilities of the token after the root. Costs the round's first draft pass."""

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed one layer of drafted tokens (target ids, [m]) to the draft head; returns float32 log-probs [m, V].

        Fed nodes are numbered in the order of feeding; `parents` [m] holds those numbers, -1 for children of the root.
        The result is the caller's to overwrite, until the next call. Costs one draft pass.
        """

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft-vocabulary ids, any shape."""


class Policy(Protocol):
    """Grows the draft tree of one round."""

    budget: int
    """Largest number of nodes that `grow` returns, root included."""

    max_fed: int
    """Largest number of drafted nodes that a round feeds to the draft head."""

    max_depth: int
    """Largest number of layers of drafted nodes."""

    fed_widths: range | tuple[int, ...]
    """The numbers of nodes that one call of `expand` may feed."""

    def grow(self, draft: Draft) -> TokenTree:
        """Ask `draft` for distributions, layer by layer, and return the tree to verify."""
