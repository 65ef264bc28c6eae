"""The draft vocabulary of an EAGLE-3 head: the tokens that answers are mostly made of (EAGLE-3 paper; FR-Spec)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from talon_bench.errors import UsageError
from talon_bench.training.shards import Shards


@dataclass(frozen=True)
class DraftVocabulary:
    """`size` target tokens in the order of their ids, as the official format writes them.

    `d2t` int64 [size]: target id minus draft id. `t2d` bool [vocabulary]: which target ids are among them. `coverage`: the
    share of the trained tokens that they make up.
    """

    d2t: Tensor
    t2d: Tensor
    coverage: float

    @property
    def target_ids(self) -> Tensor:
        """int64 [size]: the target id of each draft id."""
        return self.d2t + torch.arange(self.d2t.shape[0])


def draft_vocabulary(
    sequences: Shards | Iterable[object], size: int, include: Iterable[int] = (), vocab_size: int | None = None
) -> DraftVocabulary:
    """The `size` most frequent trained tokens; of equally frequent ones those with the lower ids. `include` always belong.

    sequences: shards, or anything with `ids` and `trained`, for which `vocab_size` must be given. UsageError where the size
    does not fit.
    """
    vocab_size = sequences.facts.vocab_size if vocab_size is None else vocab_size
    always = sorted(set(include))
    if not len(always) <= size <= vocab_size or size < 1:
        raise UsageError(
            f"a draft vocabulary of {size} tokens asked for; expected {max(len(always), 1)} to {vocab_size}"
        )
    counts = token_counts(sequences, vocab_size)
    rank = counts.clone()
    rank[always] = counts.sum() + 1
    chosen = torch.sort(rank, descending=True, stable=True).indices[:size].sort().values
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[chosen] = True
    coverage = float(counts[chosen].sum() / counts.sum()) if counts.any() else 0.0
    return DraftVocabulary(chosen - torch.arange(size), t2d, coverage)


def token_counts(sequences: Shards | Iterable[object], vocab_size: int) -> Tensor:
    """int64 [vocab_size]: how often each token is trained."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    pairs = sequences.tokens() if isinstance(sequences, Shards) else ((s.ids, s.trained) for s in sequences)
    for ids, trained in pairs:
        kept = torch.as_tensor(ids)[torch.as_tensor(trained)].long()
        counts += torch.bincount(kept, minlength=vocab_size)
    return counts
