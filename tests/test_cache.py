"""The target's cache on its own: rows written behind the committed ones, the accepted ones kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talon_bench.cache import KVCache, StaticCache
from talon_bench.errors import UsageError

LAYERS, KV_HEADS, DIM = 2, 3, 4
CPU = torch.device("cpu")


def cache(capacity: int, kind: type[KVCache] = KVCache, devices: list[torch.device] | None = None, **own) -> KVCache:
    devices = devices or [CPU] * LAYERS
    return kind(devices=devices, kv_heads=KV_HEADS, head_dim=DIM, capacity=capacity, dtype=torch.float32, **own)


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


PASSES = st.lists(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1).map(sorted))),
    min_size=1,
    max_size=6,
)
"""Of each pass the number of rows and those that are kept."""


@given(PASSES)
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


def write_by_index(into: StaticCache, values: list[int], window: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """`write` as a recorded pass does it: where to write is a tensor, how much is looked at a fixed number."""
    view = into.window(into.start + torch.arange(len(values)), window)
    return [view.update(rows(values, layer), -rows(values, layer), layer) for layer in range(LAYERS)]


@given(PASSES)
def test_writing_by_index_equals_writing_behind_the_committed_rows(passes):
    sliced, indexed, name = cache(40), cache(40, StaticCache), 0
    for n, path in passes:
        new = list(range(name, name + n))
        name += n
        read = write(sliced, new)
        for (keys, values), (all_keys, all_values) in zip(read, write_by_index(indexed, new, 40), strict=True):
            assert all_keys.shape[2] == all_values.shape[2] == 40
            assert torch.equal(all_keys[:, :, : keys.shape[2]], keys)
            assert torch.equal(all_values[:, :, : values.shape[2]], values)
        sliced.commit(path)
        indexed.commit(path)
        assert indexed.length == sliced.length == int(indexed.start)


def test_a_static_cache_keeps_its_place_of_writing_and_its_rows_where_they_are():
    kv = cache(6, StaticCache, rows=8)
    start, (keys, _), *_ = kv.start, *write_by_index(kv, [3, 4], 8)
    kv.commit([1])
    assert (kv.rows, kv.capacity, start.tolist()) == (8, 6, [1])
    assert keys.data_ptr() == write_by_index(kv, [5], 4)[0][0].data_ptr()
    kv.reset()
    assert (kv.length, start.tolist()) == (0, [0])
    assert not keys.any(), "nothing is left that is not finite"


def test_a_static_cache_serves_eager_passes_too():
    kv = cache(6, StaticCache, rows=8)
    write_by_index(kv, [7, 8], 8)
    kv.commit([0, 1])
    assert_holds(write(kv, [9]), [7, 8, 9])


def test_padded_rows_may_lie_behind_the_capacity():
    kv = cache(3, StaticCache, rows=8)
    write_by_index(kv, [0, 1, 2, 3, 4, 5, 6, 7], 8)
    with pytest.raises(UsageError, match="holds 3 tokens, 0 are committed and 4 more do not fit"):
        kv.room_for(4)


@pytest.mark.parametrize("kind", [KVCache, StaticCache])
def test_layers_on_several_devices_move_together(kind):
    """torch tells "cpu" from "cpu:0": to a cache, two devices."""
    split = cache(8, kind, devices=[CPU, torch.device("cpu:0")])
    assert len(split._blocks) == LAYERS
    write(split, [1, 2, 3, 4])
    split.commit([0, 2, 3])
    assert_holds(write(split, [99]), [1, 3, 4, 99])
