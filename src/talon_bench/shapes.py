"""The few sizes that passes are padded to on the static engine, so that each is recorded once (see `captured`)."""

from __future__ import annotations

NODES = (1, 8, 16, 32, 64, 96, 128)
"""Above the last of them, multiples of 64. While the weights are read, a GPU does 8 nodes in the time of 2."""

PADDING = 63
"""Nodes that padding adds at most."""


def padded_nodes(nodes: int) -> int:
    """Nodes of the smallest pass that holds `nodes`."""
    for size in NODES:
        if nodes <= size:
            return size
    return _up(nodes, 64)


def padded_rows(rows: int) -> int:
    """Cache rows of the smallest attention window that holds `rows`.

    Steps of 256, above 2048 of an eighth of the next power of two: little is attended to in vain, and few windows differ.
    """
    power = 1 << max(rows - 1, 0).bit_length()
    return _up(rows, max(256, power // 8))


def node_sizes(nodes: int) -> list[int]:
    """The sizes of all passes over 1 to `nodes` nodes, ascending."""
    return sorted({padded_nodes(number) for number in range(1, nodes + 1)})


def windows(first: int, last: int) -> list[int]:
    """The windows that `first` to `last` rows need, ascending."""
    found = [padded_rows(first)]
    while found[-1] < last:
        found.append(padded_rows(found[-1] + 1))
    return found


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
