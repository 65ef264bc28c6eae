"""The target's key/value cache: preallocated blocks, committed rows first, the tree under verification behind them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from talon_bench.errors import UsageError
from talon_bench.transfer import to_device


class KVCache:
    """Keys and values of all layers, one block [layers, 2, 1, kv_heads, rows, head_dim] for each run of layers on a device.

    Rows [0, length) are committed. A forward pass writes the rows of its n query tokens at [length, length + n);
    `commit` keeps the accepted ones. It stands in for transformers' `Cache` in a model's forward, which only calls
    `update` and `get_seq_length`.
    """

    is_compileable = False

    def __init__(
        self,
        *,
        devices: Sequence[torch.device],
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        rows: int | None = None,
    ) -> None:
        """devices: one for each layer. capacity: tokens that fit. rows: what is allocated, at least the capacity."""
        self.capacity = capacity
        self.rows = rows or capacity
        self.length = 0
        self._blocks = [
            torch.zeros(layers, 2, 1, kv_heads, self.rows, head_dim, dtype=dtype, device=device)
            for device, layers in _runs(devices)
        ]
        self._layers = [(layer[0], layer[1]) for block in self._blocks for layer in block]

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

    def commit(self, path: list[int]) -> None:
        """Keep these rows of the last pass (ascending, counted from `length`) and drop the rest."""
        end = self.length + len(path)
        if path != list(range(len(path))):
            rows = [self.length + node for node in path]
            for block in self._blocks:
                block[..., self.length : end, :] = block.index_select(-2, to_device(rows, block.device))
        self.length = end

    def reset(self) -> None:
        self.length = 0


class StaticCache(KVCache):
    """A cache whose place of writing is a tensor, `start`, int64 [1], so that a recorded pass finds it in each replay."""

    def __init__(self, *, devices: Sequence[torch.device], **sizes: object) -> None:
        super().__init__(devices=devices, **sizes)
        self.start = torch.zeros(1, dtype=torch.int64, device=devices[0])

    def window(self, written: Tensor, rows: int) -> Window:
        """The first `rows` rows as one pass uses them; `written`, int64 [n], are the numbers of those that it writes."""
        return Window(self._layers, written, rows)

    def commit(self, path: list[int]) -> None:
        super().commit(path)
        self.start.fill_(self.length)

    def reset(self) -> None:
        """Rows behind the committed ones are masked, but what is not finite passes through a mask: nothing is left."""
        super().reset()
        self.start.zero_()
        for block in self._blocks:
            block.zero_()


class Window:
    """What a pass of fixed shape takes for its cache: it writes by index and attends to as many rows as it was told to."""

    is_compileable = False

    def __init__(self, layers: list[tuple[Tensor, Tensor]], written: Tensor, rows: int) -> None:
        self._layers = layers
        self._written = written
        self._rows = rows

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write [1, kv_heads, n, head_dim]; views of the window, whatever its rows hold."""
        keys, values = self._layers[layer]
        keys.index_copy_(2, self._written, key)
        values.index_copy_(2, self._written, value)
        return keys[:, :, : self._rows], values[:, :, : self._rows]


def _runs(devices: Sequence[torch.device]) -> list[tuple[torch.device, int]]:
    """(device, number of layers) of each run of neighbours on one device."""
    runs: list[tuple[torch.device, int]] = []
    for device in devices:
        if runs and runs[-1][0] == device:
            runs[-1] = (device, runs[-1][1] + 1)
        else:
            runs.append((device, 1))
    return runs
