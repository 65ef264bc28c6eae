"""The target's key/value cache: one preallocated block, committed rows first, the tree under verification behind them."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_bench.errors import UsageError


class KVCache:
    """Keys and values of all layers, [layers, 2, 1, kv_heads, capacity, head_dim].

    Rows [0, length) are committed. A forward pass writes the rows of its n query tokens at [length, length + n);
    `commit` keeps the accepted ones. It stands in for transformers' `Cache` in a model's forward, which only calls
    `update` and `get_seq_length`.
    """

    is_compileable = False

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._block = torch.zeros(layers, 2, 1, kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self._block]
        self.capacity = capacity
        self.length = 0

    def room_for(self, tokens: int) -> None:
        """Raise UsageError unless `tokens` more rows fit."""
        if self.length + tokens > self.capacity:
            raise UsageError(
                f"the cache holds {self.capacity} tokens, {self.length} are committed and {tokens} more do not fit;"
                " size it as prompt + max_new_tokens + budget + 1"
            )

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write [1, kv_heads, n, head_dim] behind the committed rows; views of all rows up to there."""
        keys, values = self._layers[layer]
        end = self.length + key.shape[2]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.length

    def commit(self, rows: list[int]) -> None:
        """Keep these rows of the last pass (ascending, counted from `length`) and drop the rest."""
        if rows != list(range(len(rows))):
            source = torch.tensor(rows, device=self._block.device) + self.length
            self._block[..., self.length : self.length + len(rows), :] = self._block.index_select(-2, source)
        self.length += len(rows)

    def reset(self) -> None:
        self.length = 0
