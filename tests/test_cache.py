"""The target's cache on its own: rows written behind the committed ones, the accepted ones kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talon_bench.cache import KVCache
from talon_bench.errors import UsageError

LAYERS, KV_HEADS, DIM = 2, 3, 4


def cache(capacity: int) -> KVCache:
    return KVCache(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        capacity=capacity,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def rows(values: list[int], layer: int) -> torch.Tensor:
    """[1, kv_heads, n, head_dim], every entry telling its row, layer, head and dimension."""
    column = torch.tensor(values, dtype=torch.float32)[:, None]
    grid = 100 * column + 1000 * layer + torch.arange(KV_HEADS * DIM)
    return grid.view(1, len(values), KV_HEADS, DIM).transpose(1, 2)


def write(into: KVCache, values: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One forward pass over rows called `values`; what each layer's attention then reads."""
    return [into.update(rows(values, layer), -rows(values, layer), layer) for layer in range(LAYERS)]


def assert_holds(read: list[tuple[torch.Tensor, torch.Tensor]], values: list[int]) -> None:
    for layer, (keys, negated) in enumerate(read):
        assert torch.equal(keys, rows(values, layer))
        assert torch.equal(negated, -rows(values, layer))


def test_attention_reads_committed_rows_then_the_new_ones():
    kv = cache(6)
    write(kv, [7, 8])
    kv.commit([0, 1])
    assert kv.get_seq_length() == kv.length == 2
    assert_holds(write(kv, [9, 10, 11]), [7, 8, 9, 10, 11])
    assert kv.length == 2


@pytest.mark.parametrize(
    ("path", "kept"), [([0], [3]), ([0, 1], [3, 4]), ([0, 2, 3], [3, 5, 6]), ([3], [6]), ([1, 3], [4, 6])]
)
def test_a_path_moves_into_place(path, kept):
    kv = cache(8)
    write(kv, [1, 2])
    kv.commit([0, 1])
    write(kv, [3, 4, 5, 6])
    kv.commit(path)
    assert_holds(write(kv, [99]), [1, 2, *kept, 99])


@given(
    st.lists(
        st.integers(1, 6).flatmap(
            lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1).map(sorted))
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_sequence_of_passes_and_paths_equals_a_list(passes):
    kv, committed, name = cache(40), [], 0
    for n, path in passes:
        new = list(range(name, name + n))
        name += n
        assert_holds(write(kv, new), committed + new)
        kv.commit(path)
        committed += [new[row] for row in path]
        assert kv.length == len(committed)
    assert_holds(write(kv, [name]), [*committed, name])


def test_room_ends_at_the_capacity():
    kv = cache(5)
    write(kv, [1, 2])
    kv.commit([0, 1])
    kv.room_for(3)
    with pytest.raises(UsageError, match="holds 5 tokens, 2 are committed and 4 more do not fit") as caught:
        kv.room_for(4)
    assert "\n" not in str(caught.value)


def test_reset_forgets_the_sequence():
    kv = cache(4)
    write(kv, [1, 2])
    kv.commit([0, 1])
    kv.reset()
    assert kv.length == 0
    assert_holds(write(kv, [5]), [5])
