"""Static trees: a fixed shape filled with ranked tokens. EAGLE-1's tree is one, a chain is another (EAGLE paper, section 4)."""

from __future__ import annotations

import torch

from talon_bench.errors import UsageError
from talon_bench.policies.base import Draft
from talon_bench.tree import TokenTree, from_layers

Choice = tuple[int, ...]


class Static:
    """A tree given as paths of ranks: node (.., c) takes the c-th best token after its parent.

    `choices` is EAGLE's notation, e.g. [[0], [1], [0, 0]]: the best and second-best token after the root, and the best
    one after the best. Every prefix of a path must be listed too. Nodes are ordered by depth, then by path. Draft passes
    equal the depth of the tree: the first gives the root's distribution, and layers without children are not fed.
    """

    def __init__(self, choices: list[list[int]]) -> None:
        paths = [tuple(path) for path in choices]
        known = set(paths)
        for path in paths:
            if not path or min(path) < 0 or (len(path) > 1 and path[:-1] not in known):
                raise UsageError(
                    f"tree node {list(path)} has no parent in the list or is no path of ranks; list every prefix of each path"
                )
        if len(known) != len(paths):
            raise UsageError("the tree lists a node twice; list each path of ranks once")
        self.budget = len(paths) + 1
        self._layers = [
            sorted(path for path in paths if len(path) == depth)
            for depth in range(1, max((len(path) for path in paths), default=0) + 1)
        ]
        self.max_depth = len(self._layers)
        self.fed_widths = tuple(len(self._inner(depth)) for depth in range(self.max_depth - 1))
        self.max_fed = sum(self.fed_widths)
        self._plans = [self._plan(depth) for depth in range(self.max_depth)]
        self._device = torch.device("cpu")
        self._most = [1 + max(path[-1] for path in layer) for layer in self._layers]

    def _plan(self, depth: int) -> dict[str, torch.Tensor]:
        """Index tensors for one layer: where its nodes' tokens come from and how its inner nodes are fed.

        `rows`, `ranks`, `parents` [width]: row of the distribution, rank in it, parent's node number.
        `feed` [fed]: the layer's nodes with children; `fed_parents` [fed]: their parents' feeding numbers.
        """
        layer = self._layers[depth]
        above = self._inner(depth - 1)
        offset = 1 + sum(len(earlier) for earlier in self._layers[: depth - 1]) if depth else 0
        fed_offset = sum(len(self._inner(earlier)) for earlier in range(depth - 1)) if depth else 0
        inner = self._inner(depth)
        return {
            "rows": torch.tensor([above.index(path[:-1]) if depth else 0 for path in layer]),
            "ranks": torch.tensor([path[-1] for path in layer]),
            "parents": torch.tensor(
                [offset + self._layers[depth - 1].index(path[:-1]) if depth else 0 for path in layer]
            ),
            "feed": torch.tensor([layer.index(path) for path in inner], dtype=torch.long),
            "fed_parents": torch.tensor(
                [fed_offset + above.index(path[:-1]) if depth else -1 for path in inner], dtype=torch.long
            ),
        }

    def _inner(self, depth: int) -> list[Choice]:
        """Nodes of the layer that have children, in layer order."""
        if not 0 <= depth < len(self._layers) - 1:
            return []
        parents = {path[:-1] for path in self._layers[depth + 1]}
        return [path for path in self._layers[depth] if path in parents]

    def _plans_on(self, device: torch.device) -> list[dict[str, torch.Tensor]]:
        """The plans of all layers, moved to `device` when it is first met."""
        if self._device != device:
            self._plans = [{name: index.to(device) for name, index in plan.items()} for plan in self._plans]
            self._device = device
        return self._plans

    def grow(self, draft: Draft) -> TokenTree:
        log_probs = draft.root_log_probs()[None]  # [fed, V]
        fed_scores = log_probs.new_zeros(1)
        layers = []
        for most, plan in zip(self._most, self._plans_on(log_probs.device), strict=True):
            top, ids = log_probs.topk(most, dim=-1)  # [fed, most]
            tokens = draft.to_target(ids[plan["rows"], plan["ranks"]])
            scores = fed_scores[plan["rows"]] + top[plan["rows"], plan["ranks"]]
            layers.append((tokens, plan["parents"], scores))
            feed = plan["feed"]
            if len(feed):
                log_probs = draft.expand(tokens[feed], plan["fed_parents"])
                fed_scores = scores[feed]
        return from_layers(draft.root, layers, device=log_probs.device)


def chain(length: int) -> Static:
    """`length` drafted tokens in a row, each the draft head's best."""
    return Static([[0] * depth for depth in range(1, length + 1)])
