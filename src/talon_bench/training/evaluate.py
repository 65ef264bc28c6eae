"""How well a head predicts its target on held-out answers, teacher-forced: accuracy per step and chain length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from talon_bench.training.autograd import ROWS
from talon_bench.training.batch import Batch, collate, trained_tokens
from talon_bench.training.head import Trainee
from talon_bench.training.loss import DraftColumns, FullColumns
from talon_bench.training.shards import Sample

STEPS = 5
"""Length of the drafted chain."""
RANKS = (1, 3, 10)


@dataclass(frozen=True)
class Scores:
    """Scores on one family of held-out answers."""

    tokens: int
    """Tokens that the first step predicted."""
    top1: list[float]
    """Share of tokens, per step, where the target's likeliest token is the head's; NaN where a step met none."""
    top3: list[float]
    top10: list[float]
    chain: float
    """Tokens per verification of a greedy chain of `STEPS`, bonus token included, mean over all positions with room for
    it. Exact for answers that the target wrote greedily; on others the text
    stands in for what the target would write. NaN where no position has room."""

    def record(self) -> dict[str, object]:
        """The scores as JSON values, null for what is not defined."""
        shares = {f"top{rank}": [_rounded(value) for value in getattr(self, f"top{rank}")] for rank in RANKS}
        return {"tokens": self.tokens, **shares, "chain": _rounded(self.chain)}


def evaluate(
    trainee: Trainee,
    families: dict[str, Sequence[Sample]],
    columns: DraftColumns | FullColumns,
    *,
    batch_tokens: int = 1700,
    dtype: torch.dtype = torch.float32,
    shuffle: bool = False,
) -> dict[str, Scores]:
    """Scores per family; shuffle: features are mixed over all positions of a batch, which a head that uses them minds."""
    scores = {}
    for family, samples in families.items():
        ranks = [
            _ranks(trainee, _shuffled(batch) if shuffle else batch, columns)
            for batch in _batches(trainee, samples, batch_tokens, dtype)
        ]
        if ranks:
            scores[family] = _scores(torch.cat(ranks, dim=1))
    return scores


def _batches(trainee: Trainee, samples: Sequence[Sample], batch_tokens: int, dtype: torch.dtype) -> Iterator[Batch]:
    spec = trainee.spec
    waiting: list[Sample] = []
    size = 0
    for sample in samples:
        if tokens := trained_tokens(sample.trained):
            waiting.append(sample)
            size += tokens
        if size >= batch_tokens or (waiting and sample is samples[-1]):
            yield collate(
                waiting,
                eagle3=spec.kind == "eagle3",
                steps=STEPS,
                group=spec.num_heads // spec.num_kv_heads,
                dtype=dtype,
                device=trainee.scale.device,
            )
            waiting, size = [], 0


def _shuffled(batch: Batch) -> Batch:
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(batch.features)))
    return replace(batch, features=batch.features[order.to(batch.features.device)])


@torch.no_grad()
def _ranks(trainee: Trainee, batch: Batch, columns: DraftColumns | FullColumns) -> Tensor:
    """int64 [STEPS, rows]: logits above that of the target's likeliest token; -1 where there is nothing to predict.

    A token that the head cannot draft has the rank of the vocabulary's end.
    """
    projection = columns.of(trainee, batch, 0)
    matrix, end = projection.matrix, projection.matrix.shape[0]
    ranks = torch.full(batch.valid.shape, -1)
    for step, outputs in enumerate(trainee.rollout(batch, STEPS)):
        chosen = torch.nonzero(batch.valid[step]).flatten()
        wanted = projection.place[batch.top_ids[batch.ahead(step)[chosen], 0]]
        states = trainee.read(outputs[chosen])
        for start in range(0, len(chosen), ROWS):
            part = slice(start, start + ROWS)
            logits = torch.mm(states[part], matrix.to(states.dtype).T)
            own = logits.gather(1, wanted[part, None].clamp_min(0))
            above = (logits > own).sum(-1)
            ranks[step, chosen[part].cpu()] = torch.where(wanted[part] >= 0, above, end).cpu()
    return ranks


def _scores(ranks: Tensor) -> Scores:
    known = ranks >= 0
    count = known.sum(1)
    shares = {f"top{rank}": (((ranks < rank) & known).sum(1) / count).tolist() for rank in RANKS}
    whole = ranks[:, known.all(0)]
    accepted = (whole == 0).int().cumprod(0).sum(0)
    return Scores(int(count[0]), **shares, chain=float(1 + accepted.double().mean()))


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)
