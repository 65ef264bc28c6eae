"""What a head in training is asked for: the target's distribution at every step of the rollout, and its states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from talon_bench.training.autograd import SoftCrossEntropy
from talon_bench.training.batch import Batch
from talon_bench.training.head import Eagle3Trainee, Trainee


@dataclass(frozen=True)
class Columns:
    """An output projection: which target tokens its columns stand for."""

    matrix: Tensor
    """[columns, hidden]."""
    place: Tensor
    """int64 [vocab]: column of each target token, -1 where it has none."""
    bias: Tensor | None = None
    """[columns]: log of the number of tokens that a column stands for."""


class DraftColumns:
    """The draft vocabulary, all of it, through the head's own `lm_head`."""

    def __init__(self, ids: Tensor, vocab: int) -> None:
        self._place = places(ids, vocab)

    def of(self, trainee: Eagle3Trainee, batch: Batch, step: int) -> Columns:
        return Columns(trainee.lm_head.weight, self._place)


class SampledColumns:
    """The target's own projection on part of its vocabulary: EAGLE-1/2 heads on a CPU cannot afford all of it.

    Columns are the draft vocabulary `ids`, what the batch's teachers like best, and `count` random tokens that stand for
    all others: each counts as many times as there are others to one of them, so that the sum over the vocabulary is right
    in expectation. projection: [vocab, hidden], frozen.
    """

    def __init__(self, projection: Tensor, ids: Tensor, count: int, seed: int) -> None:
        self._projection = projection
        self._ids = ids.cpu()
        self._count = count
        self._seed = seed

    def of(self, trainee: Trainee, batch: Batch, step: int) -> Columns:
        """Columns of training step `step`: a function of the batch, the step and the seed."""
        vocab = self._projection.shape[0]
        known = torch.zeros(vocab, dtype=torch.bool)
        known[self._ids] = True
        known[batch.top_ids[:, 0].cpu()] = True
        others = torch.nonzero(~known).flatten()
        drawn = np.random.default_rng([self._seed, step]).permutation(len(others))[: self._count]
        known = torch.nonzero(known).flatten()
        columns = torch.cat([known, others[torch.from_numpy(drawn)]]).to(self._projection.device)
        bias = torch.zeros(len(columns), device=columns.device)
        if len(drawn):
            bias[len(known) :] = float(np.log(len(others) / len(drawn)))
        return Columns(self._projection[columns], places(columns, vocab), bias)


class FullColumns:
    """The target's own projection on its whole vocabulary."""

    def __init__(self, projection: Tensor) -> None:
        self._columns = Columns(projection, torch.arange(projection.shape[0], device=projection.device))

    def of(self, trainee: Trainee, batch: Batch, step: int) -> Columns:
        return self._columns


def rollout_loss(
    trainee: Trainee, batch: Batch, columns: Columns, *, steps: int, decay: float, regression: float
) -> Tensor:
    """Mean of the steps' losses with weights decay^j, in nats for an EAGLE-3 head.

    A step's token loss is the cross-entropy against the target's stored top tokens that have a column, with probabilities
    that add up to 1 again. A row counts by the share of its stored probability that these tokens have: where the target
    likes what the head cannot draft, the rest of its distribution teaches little. regression: weight of smooth L1 on the
    target's states, as in EAGLE-1; 0 for EAGLE-3.
    """
    weights = [decay**step / sum(decay**other for other in range(steps)) for step in range(steps)]
    total = batch.features.new_zeros((), dtype=torch.float32)
    asked = []
    for step, outputs in enumerate(trainee.rollout(batch, steps)):
        chosen = torch.nonzero(batch.valid[step]).flatten()
        if not len(chosen):
            break
        outputs = outputs.index_select(0, chosen)
        at = batch.ahead(step).index_select(0, chosen)
        teacher, probs, share = teach(batch, at, columns.place)
        asked.append((trainee.read(outputs), teacher, probs, share * (weights[step] / share.sum().clamp_min(1e-6))))
        if regression:
            missed = F.smooth_l1_loss(outputs.float(), batch.final.index_select(0, at).float())
            total = total + weights[step] * regression * missed
    states, teacher, probs, shares = (torch.cat(parts) for parts in zip(*asked, strict=True))
    return total + SoftCrossEntropy.apply(states, columns.matrix, columns.bias, teacher, probs, shares)


def teach(batch: Batch, at: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The target's distribution behind positions `at` [n]: columns int64 [n, k], probabilities [n, k], share [n].

    Tokens without a column have column 0 and probability 0; share: the part of the stored probability that has a column.
    """
    found = place[batch.top_ids.index_select(0, at)]
    probs = batch.top_probs.index_select(0, at)
    known = probs * (found >= 0)
    mass = known.sum(-1)
    return found.clamp_min(0), known / mass.clamp_min(1e-9)[:, None], mass / probs.sum(-1)


def places(ids: Tensor, vocab: int) -> Tensor:
    """int64 [vocab]: the place of each target token in `ids`, -1 where it is absent."""
    found = torch.full((vocab,), -1, dtype=torch.int64, device=ids.device)
    found[ids] = torch.arange(len(ids), device=ids.device)
    return found
