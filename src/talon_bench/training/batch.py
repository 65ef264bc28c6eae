"""Which sequences are trained in which order, and how those of one step lie in memory: one behind the other, unpadded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from talon_bench.errors import UsageError
from talon_bench.training.autograd import Block
from talon_bench.training.shards import Sample

QUERIES = 256
"""Queries of a block of attention: the part of a long context that none of them sees is not computed."""


class Samples(Protocol):
    """Sequences to train on (`shards.Shards`)."""

    trained: np.ndarray
    """int64: trained tokens of each sequence."""

    def read(self, number: int) -> Sample:
        """One sequence."""


@dataclass(frozen=True)
class Batch:
    """Sequences behind one another: N positions, of which R rows begin a drafted chain.

    A row is the position of the last token that is fed with a feature of the target; `valid` says for each step of the
    rollout which rows predict a token of an answer there.
    """

    tokens: Tensor
    """int64 [N + 1], the last one a filler."""
    features: Tensor
    """[N, features] of the kind of head that is trained."""
    final: Tensor | None
    """[N, hidden], for regression."""
    top_ids: Tensor
    """int64 [N, k]."""
    top_probs: Tensor
    """float32 [N, k]."""
    positions: Tensor
    """int64 [N], each sequence's own from 0."""
    rows: Tensor
    """int64 [R], ascending."""
    valid: Tensor
    """bool [steps, R]."""
    blocks: tuple[Block, ...]

    @property
    def trained_tokens(self) -> int:
        """Tokens of answers that the first step predicts."""
        return int(self.valid[0].sum())

    def ahead(self, step: int) -> Tensor:
        """int64 [R]: where the token stands that a row takes in at `step`, and the teacher of what it predicts there."""
        return (self.rows + step + 1).clamp_(max=self.positions.shape[0] - 1)


def plan(trained: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Sequence numbers of each batch of one epoch, a function of its arguments alone.

    trained: trained tokens per sequence. A batch is closed when a further sequence would take it further from
    `batch_tokens` than it is, so that batches have that size on average.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(trained))
    batches: list[list[int]] = []
    size = 0
    for number in order.tolist():
        if not trained[number]:
            continue
        if not batches or batch_tokens - size < size + trained[number] - batch_tokens:
            batches.append([])
            size = 0
        batches[-1].append(number)
        size += trained[number]
    return batches


def trained_tokens(trained: Tensor) -> int:
    """Tokens that the first step of a rollout predicts: those of answers from the third token of a sequence on."""
    return int(trained[2:].sum())


def collate(
    samples: Sequence[Sample],
    *,
    eagle3: bool,
    steps: int,
    group: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Batch:
    """The batch of these sequences for rollouts of `steps` steps; `group` query heads share a key/value head."""
    starts = np.cumsum([0, *(len(sample.ids) for sample in samples)]).tolist()
    rows, valid = zip(*(_chains(sample.trained, steps) for sample in samples), strict=True)
    blocks: list[Block] = []
    first = 0
    for start, own in zip(starts, rows, strict=False):
        blocks += _blocks(own, start, first, group, dtype, device)
        first += len(own)
    if not eagle3 and any(sample.final is None for sample in samples):
        raise UsageError("the shards hold no final states, which an EAGLE-1/2 head reads; make them again with them")
    final = None if eagle3 else torch.cat([sample.final for sample in samples]).to(device, dtype)
    features = torch.cat([sample.features for sample in samples]).to(device, dtype) if eagle3 else final
    tokens = torch.cat([*(sample.ids for sample in samples), samples[0].ids[:1]])
    return Batch(
        tokens=tokens.to(device, torch.int64),
        features=features,
        final=final,
        top_ids=torch.cat([sample.top_ids for sample in samples]).to(device, torch.int64),
        top_probs=torch.cat([sample.top_log_probs for sample in samples]).to(device).float().exp_(),
        positions=torch.cat([torch.arange(len(sample.ids)) for sample in samples]).to(device),
        rows=torch.cat([own + start for own, start in zip(rows, starts, strict=False)]).to(device),
        valid=torch.cat(valid, dim=1).to(device),
        blocks=tuple(blocks),
    )


def _chains(trained: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Rows of one sequence (int64 [r]), and for each step (bool [steps, r]) whether all it predicted so far is trained."""
    rows = torch.nonzero(trained[2:]).flatten()
    padded = torch.cat([trained[2:], trained.new_zeros(steps)])
    ahead = padded[rows + torch.arange(steps)[:, None]]
    return rows, ahead.int().cumprod(0).bool()


def _blocks(
    rows: Tensor, start: int, first: int, group: int, dtype: torch.dtype, device: torch.device | str
) -> Iterator[Block]:
    """Blocks of a sequence whose positions begin at `start` and whose rows are the batch's from `first` on."""
    for low in range(0, len(rows), QUERIES):
        part = rows[low : low + QUERIES].to(device)
        seen = int(part[-1]) + 1
        hidden = torch.arange(seen, device=device) > part[:, None]
        mask = torch.zeros(len(part), seen, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
        yield Block(
            rows=slice(first + low, first + low + len(part)),
            context=slice(start, start + seen),
            mask=mask.repeat_interleave(group, dim=0),
        )
