"""The order of the data, the rows that begin a chain, and how sequences lie behind one another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talon_bench.errors import UsageError
from talon_bench.training import batch as batches
from talon_bench.training.batch import collate, plan
from talon_bench.training.shards import Sample


def sample(trained: list[int], first: int = 10, features: int = 6, final: bool = True) -> Sample:
    """A sequence with tokens first, first + 1, ... whose features are their ids."""
    ids = torch.arange(first, first + len(trained), dtype=torch.int32)
    states = ids[:, None].expand(-1, features).to(torch.bfloat16)
    return Sample(
        ids=ids,
        trained=torch.tensor(trained, dtype=torch.bool),
        features=states,
        final=states[:, :2] if final else None,
        top_ids=torch.stack([ids + 1, ids + 2], dim=1),
        top_log_probs=torch.full((len(trained), 2), np.log(0.25)).half(),
    )


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=60),
    st.integers(1, 100),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_an_epoch_has_every_sequence_once_in_batches_of_about_the_size_asked_for(trained, size, seed, epoch):
    batches = plan(trained, size, seed, epoch)
    assert sorted(number for batch in batches for number in batch) == [n for n, count in enumerate(trained) if count]
    assert batches == plan(trained, size, seed, epoch)
    for place, batch in enumerate(batches):
        counts = [trained[number] for number in batch]
        # Neither with its last sequence nor without it would a batch be nearer to the size.
        assert len(batch) == 1 or abs(sum(counts) - size) <= abs(sum(counts[:-1]) - size)
        if place + 1 < len(batches):
            assert abs(sum(counts) - size) < abs(sum(counts) + trained[batches[place + 1][0]] - size)


def test_the_order_changes_with_the_epoch_and_the_seed():
    orders = {str(plan([5] * 40, 10, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_a_batch_written_out():
    """Two sequences; the first has two answers with a question between them."""
    made = collate([sample([0, 0, 0, 1, 1, 0, 0, 1]), sample([0, 0, 1, 1, 1], first=50)], eagle3=True, steps=3, group=2)
    assert made.tokens.tolist() == [*range(10, 18), *range(50, 55), 10]
    assert made.positions.tolist() == [*range(8), *range(5)]
    assert made.rows.tolist() == [1, 2, 5, 8, 9, 10]
    # Row 1 predicts tokens 3, 4 and then one of the question; the last rows of each sequence run out of text.
    assert made.valid.tolist() == [
        [True, True, True, True, True, True],
        [True, False, False, True, True, False],
        [False, False, False, True, False, False],
    ]
    assert made.trained_tokens == 6
    assert made.ahead(0).tolist() == [2, 3, 6, 9, 10, 11]
    assert made.ahead(2).tolist() == [4, 5, 8, 11, 12, 12]
    assert made.top_ids[made.ahead(1)][:, 0].tolist() == [14, 15, 18, 53, 54, 55]
    assert made.features.shape == (13, 6)
    assert made.features.dtype is torch.float32
    assert made.final is None
    torch.testing.assert_close(made.top_probs, torch.full((13, 2), 0.25), rtol=1e-3, atol=0)
    first, second = made.blocks
    assert (first.rows, first.context) == (slice(0, 3), slice(0, 6))
    assert (second.rows, second.context) == (slice(3, 6), slice(8, 11))
    low = float("-inf")
    assert second.mask.tolist() == [[0, low, low]] * 2 + [[0, 0, low]] * 2 + [[0, 0, 0]] * 2


def test_long_sequences_are_cut_into_blocks_that_see_no_further_than_they_need(monkeypatch):
    monkeypatch.setattr(batches, "QUERIES", 4)
    made = collate([sample([0, 0, *[1] * 10])], eagle3=False, steps=1, group=1)
    assert [(block.rows.start, block.rows.stop, block.context.stop) for block in made.blocks] == [
        (0, 4, 4),
        (4, 8, 8),
        (8, 10, 10),
    ]
    assert made.features is made.final
    assert made.features.shape == (12, 2)


def test_heads_of_the_first_format_need_final_states():
    with pytest.raises(UsageError, match="no final states"):
        collate([sample([0, 0, 1], final=False)], eagle3=False, steps=1, group=1)
