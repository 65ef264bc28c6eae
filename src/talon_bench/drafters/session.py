"""A draft head and a tree policy, together proposing one tree per round."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.clock import PhaseClock
from talon_bench.drafters.head import DraftHead
from talon_bench.policies import Policy
from talon_bench.transfer import to_device
from talon_bench.tree import TokenTree


class HeadDrafter:
    """Runs `policy` on `head` over one sequence.

    The head's cache holds one row per committed position, made from the target's features. Rows of drafted nodes lie
    behind them and are overwritten by the next round: accepted tokens are fed again with the target's own features, in one
    catch-up pass, which is the first draft pass of a round.
    """

    def __init__(self, head: DraftHead, policy: Policy) -> None:
        self.head = head
        self.budget = policy.budget
        self.feature_layers = head.spec.feature_layers
        self.passes = 0
        self.root = -1
        self.queued = head.device.type != "cpu"
        self._policy = policy
        self._clock = PhaseClock()
        self._context = 0  # committed rows of the head's cache
        self._tokens: list[int] = []  # committed tokens not yet fed, and their features
        self._features: list[Tensor] = []
        # Drafted nodes fed in this round, in feeding order. The last row stands for the root: number -1.
        self._fed = 0
        self._layer = 0
        options = {"dtype": head.dtype, "device": head.device}
        self._outputs = torch.zeros(policy.max_fed + 1, head.spec.hidden_size, **options)
        self._visible = torch.full((policy.max_fed + 1, policy.max_fed), float("-inf"), **options)

    def start(self, prompt: list[int], capacity: int) -> None:
        self._reserve(len(prompt), capacity)
        self.passes = self._context = 0
        self._tokens, self._features = [], []

    def observe(self, tokens: list[int], features: Tensor) -> None:
        self._tokens += tokens
        self._features.append(features)

    def propose(self, root: int, clock: PhaseClock) -> TokenTree:
        self.root, self._clock = root, clock
        return self._policy.grow(self)

    def root_log_probs(self) -> Tensor:
        """The catch-up pass over the tokens committed since the last round. See `policies.Draft`."""
        log_probs = self._catch_up([*self._tokens[1:], self.root])
        self._context += len(self._tokens)
        self._tokens, self._features = [], []
        self._fed = self._layer = 0
        self.passes += 1
        return log_probs

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """One pass over a layer of drafted nodes, each seeing the context and its own ancestors. See `policies.Draft`."""
        log_probs = self._feed(tokens, parents)
        self._fed += tokens.shape[0]
        self._layer += 1
        self.passes += 1
        return log_probs

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return self.head.to_target(draft_ids)

    def _reserve(self, prompt_tokens: int, capacity: int) -> None:
        self.head.allocate(capacity + self._policy.max_fed)

    def _catch_up(self, tokens: list[int]) -> Tensor:
        n = len(tokens)
        rows = slice(self._context, self._context + n)
        fed, features = to_device(tokens, self.head.device), torch.cat(self._features)
        mask = None
        if n > 1:
            mask = torch.full((n, n), float("-inf"), dtype=self.head.dtype, device=self.head.device).triu_(1)
            mask = torch.cat([mask.new_zeros(n, self._context), mask], dim=-1)
        self._clock.lap("other")
        outputs = self.head.forward(fed, self.head.fuse(features), rows, rows, mask)
        log_probs = self.head.log_probs(outputs[-1:])[0]
        self._clock.lap("draft")
        self._outputs[-1] = outputs[-1]
        return log_probs

    def _feed(self, tokens: Tensor, parents: Tensor) -> Tensor:
        new = slice(self._fed, self._fed + tokens.shape[0])
        states = self._outputs[parents]
        self._visible[new] = self._visible[parents]
        self._visible.diagonal()[new] = 0
        mask = self._visible.new_zeros(tokens.shape[0], self._context + new.stop)
        mask[:, self._context :] = self._visible[new, : new.stop]
        position = slice(self._context + self._layer, self._context + self._layer + 1)
        rows = slice(self._context + new.start, self._context + new.stop)
        self._clock.lap("other")
        outputs = self.head.forward(tokens, states, position, rows, mask)
        log_probs = self.head.log_probs(outputs)
        self._clock.lap("draft")
        self._outputs[new] = outputs
        return log_probs
