"""A draft head's passes in few shapes, so that each is recorded once (see `captured`): the static engine's drafting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from talon_bench.captured import Captured
from talon_bench.policies import Policy
from talon_bench.shapes import node_sizes, padded_nodes, padded_rows, windows
from talon_bench.transfer import to_device

if TYPE_CHECKING:
    from talon_bench.drafters.head import DraftHead


class StaticPasses:
    """The passes of one head, for all drafters that use it in turn.

    What changes from pass to pass lies in tensors that stay where they are. The host writes tokens, parents and three numbers;
    the recorded pass finds the rest itself: positions, cache rows, the states that it starts from and what each node sees.

    A pass is padded to `width` nodes and looks at `window` rows of the head's cache. Padded nodes are whatever an earlier
    pass left in the buffers. They are written behind the real ones, which do not see them, and the next pass overwrites them.
    """

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        self._catch_ups = Captured(self._catch_up_pass, head.device)
        self._expansions = Captured(self._expand_pass, head.device)
        self._cache: Tensor | None = None
        self._window = self._width = self._longest = 0
        self._max_fed = 1

    @property
    def shapes(self) -> int:
        """Shapes of passes met so far."""
        return self._catch_ups.shapes + self._expansions.shapes

    def reserve(self, capacity: int, policy: Policy) -> None:
        """Begin a sequence of at most `capacity` positions, drafted for `policy`; buffers that are large enough are kept."""
        head = self._head
        self._longest = padded_nodes(policy.max_depth + 1)
        width = max(self._longest, padded_nodes(max(policy.fed_widths, default=1)))
        if width > self._width or policy.max_fed > self._max_fed:
            self._make_buffers(max(width, self._width), max(policy.max_fed, self._max_fed))
        rows = padded_rows(capacity + self._max_fed + self._width)
        if head.capacity < rows:
            # Doubling bounds how often everything is recorded again.
            head.allocate(padded_rows(max(rows, 2 * head.capacity)))
        if self._cache is not head.cache:
            self._cache = head.cache
            self._forget()
        for cells in (self._inbox, self._place, self._tokens, self._parents, self._outputs, self._cache):
            cells.zero_()

    def prepare(self, policy: Policy, first: int, last: int) -> None:
        """Record every pass that `policy` can ask for behind `first` to `last` committed positions."""
        for window in windows(first + self._max_fed, last + self._max_fed):
            for width in node_sizes(policy.max_depth + 1):
                self._catch_ups.prepare(width=width, window=window)
            for width in sorted({padded_nodes(fed) for fed in policy.fed_widths}):
                self._expansions.prepare(width=width, window=window)

    def fits(self, tokens: int) -> bool:
        """Whether so many tokens are caught up with in one pass here; a prompt mostly is too long."""
        return tokens <= self._longest

    def begin(self, committed: int, state: Tensor) -> None:
        """Go on from a catch-up pass made elsewhere: `committed` rows of the cache, output [1, hidden] of the last."""
        self._place[:1].fill_(committed)
        self._outputs[:1] = state
        self._window = padded_rows(committed + self._max_fed)

    def catch_up(self, context: int, tokens: list[int], features: list[Tensor]) -> Tensor:
        """Feed committed tokens with their features behind `context` rows; float32 [V] log-probabilities after the last."""
        n = len(tokens)
        self._inbox[: n + 2] = to_device([context, n - 1, *tokens], self._head.device)
        torch.cat(features, out=self._features[:n])
        self._window = padded_rows(context + n + self._max_fed)
        return self._catch_ups(width=padded_nodes(n), window=self._window)

    def expand(self, tokens: Tensor, parents: Tensor, layer: int, fed: int) -> Tensor:
        """Feed drafted nodes, `fed` of which were fed in the layers before; float32 [m, V], valid until the next call.

        tokens, parents: [m], as in `policies.Draft.expand`. layer: 0 for the children of the root.
        """
        m = tokens.shape[0]
        self._tokens[:m] = tokens
        self._parents[:m] = parents
        self._place[1:2].fill_(layer)
        self._place[2:].fill_(fed)
        return self._expansions(width=padded_nodes(m), window=self._window)[:m]

    def _make_buffers(self, width: int, max_fed: int) -> None:
        """Buffers for passes of `width` nodes. Row 0 of what is kept of each fed node stands for the root."""
        head, spec = self._head, self._head.spec
        self._width, self._max_fed = width, max_fed

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=head.device)

        self._inbox = zeros(2 + width)  # rows of context, number of the last token, tokens
        self._features = zeros(width, head.feature_width, dtype=head.dtype)
        self._place = zeros(3)  # committed rows, layer, nodes fed before
        self._tokens, self._parents = zeros(width), zeros(width)
        self._outputs = zeros(1 + max_fed + width, spec.hidden_size, dtype=head.dtype)
        self._seen = zeros(1 + max_fed + width, max_fed, dtype=torch.bool)
        self._forget()

    def _forget(self) -> None:
        self._catch_ups.forget()
        self._expansions.forget()

    def _catch_up_pass(self, *, width: int, window: int) -> Tensor:
        head = self._head
        context, last, tokens = self._inbox[:1], self._inbox[1:2], self._inbox[2 : 2 + width]
        columns = torch.arange(window, device=head.device)
        rows = context + torch.arange(width, device=head.device)
        # What the last round left behind is masked, but numbers that are not finite pass through a mask.
        head.wipe(columns >= context)
        mask = self._additive(columns <= rows[:, None])
        outputs = head.forward(tokens, head.fuse(self._features[:width]), rows, rows, mask)
        output = outputs.index_select(0, last)
        self._outputs.zero_()
        self._outputs[:1] = output
        self._place[:1] = context + last + 1
        return head.log_probs(output)[0]

    def _expand_pass(self, *, width: int, window: int) -> Tensor:
        head = self._head
        committed, layer, fed = self._place[:1], self._place[1:2], self._place[2:]
        nodes = fed + torch.arange(width, device=head.device)
        above = self._parents[:width] + 1
        numbers = torch.arange(self._max_fed, device=head.device)
        seen = self._seen[above] | (numbers == nodes[:, None])
        self._seen[nodes + 1] = seen
        columns = torch.arange(window, device=head.device) - committed  # the feeding number of each cache row
        drafted = seen[:, columns.clamp(0, self._max_fed - 1)] & (columns < self._max_fed)
        mask = self._additive((columns < 0) | drafted)
        outputs = head.forward(self._tokens[:width], self._outputs[above], committed + layer, committed + nodes, mask)
        self._outputs[nodes + 1] = outputs
        return head.log_probs(outputs)

    def _additive(self, visible: Tensor) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=self._head.dtype, device=self._head.device)
        return mask.masked_fill_(~visible, float("-inf"))
