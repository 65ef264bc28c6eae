"""The losses against their definitions, the sampled projection against the whole one, scores by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from talon_bench.training import autograd
from talon_bench.training.autograd import SoftCrossEntropy
from talon_bench.training.batch import collate
from talon_bench.training.build import Borrowed, new_trainee
from talon_bench.training.evaluate import _scores, evaluate
from talon_bench.training.loss import DraftColumns, FullColumns, SampledColumns, places, rollout_loss, teach
from toy_training import LAYERS, small, taught
from toys import VOCAB_SIZE


def double(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("rows", [3, 100])
def test_the_cross_entropy_and_its_gradients(rows, monkeypatch):
    monkeypatch.setattr(autograd, "ROWS", rows)
    states, matrix = double(7, 4, seed=0), double(9, 4, seed=1)
    bias = double(9, seed=2).detach()
    columns = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(row))[:3] for row in range(7)])
    probs = double(7, 3, seed=3).detach().softmax(-1)
    weights = torch.arange(7).double()
    teacher = torch.zeros(7, 9, dtype=torch.float64).scatter_(1, columns, probs)
    expected = (F.cross_entropy(states @ matrix.T + bias, teacher, reduction="none") * weights).sum()
    found = SoftCrossEntropy.apply(states, matrix, bias, columns, probs, weights)
    torch.testing.assert_close(found, expected)
    for own, reference in zip(
        torch.autograd.grad(3 * found, (states, matrix)),
        torch.autograd.grad(3 * expected, (states, matrix)),
        strict=True,
    ):
        torch.testing.assert_close(own, reference)
    frozen = SoftCrossEntropy.apply(states, matrix.detach(), None, columns, probs, weights)
    frozen.backward()
    assert matrix.grad is None
    assert states.grad is not None


def test_the_teacher_is_brought_to_the_columns_by_hand():
    """Of three tokens with 0.5, 0.3 and 0.1, the second has no column: 0.6 of 0.9 stay, and add up to 1."""
    batch = SimpleNamespace(
        top_ids=torch.tensor([[4, 2, 7], [2, 3, 5], [7, 4, 2]]),
        top_probs=torch.tensor([[0.5, 0.3, 0.1], [0.6, 0.2, 0.1], [0.5, 0.25, 0.0]]),
    )
    columns, probs, share = teach(batch, torch.tensor([0, 1, 2]), places(torch.tensor([4, 7, 9]), 10))
    assert columns.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    torch.testing.assert_close(probs, torch.tensor([[5 / 6, 0, 1 / 6], [0, 0, 0], [2 / 3, 1 / 3, 0]]))
    torch.testing.assert_close(share, torch.tensor([0.6 / 0.9, 0, 1]))


@pytest.fixture(scope="module")
def lesson(toy_target):
    """(target, sequences, an EAGLE-3 and an EAGLE-1/2 head with their vocabulary)."""
    target = toy_target("llama")
    samples = taught(target, 4)
    ids = torch.arange(10, 90)
    borrowed = Borrowed.of(target)
    heads = {kind: new_trainee(small(kind), borrowed, LAYERS, ids, samples)[0] for kind in ("eagle3", "eagle2")}
    return target, samples, ids, heads


def gathered(trainee, samples, steps: int):
    spec = trainee.spec
    return collate(samples, eagle3=spec.kind == "eagle3", steps=steps, group=spec.num_heads // spec.num_kv_heads)


def test_an_untrained_head_knows_nothing(lesson):
    """The first loss is about ln V, whatever the size of the target's own output rows."""
    _, samples, ids, heads = lesson
    for kind, columns in (
        ("eagle3", DraftColumns(ids, VOCAB_SIZE)),
        ("eagle2", FullColumns(lesson[0].model.lm_head.weight)),
    ):
        trainee = heads[kind]
        batch = gathered(trainee, samples, 4)
        loss = rollout_loss(trainee, batch, columns.of(trainee, batch, 0), steps=4, decay=0.8, regression=0.0)
        assert abs(loss.item() - math.log(len(ids) if kind == "eagle3" else VOCAB_SIZE)) < 0.4


def test_the_loss_is_the_weighted_mean_of_its_steps(lesson):
    _, samples, ids, heads = lesson
    trainee = heads["eagle3"]
    batch, columns = gathered(trainee, samples, 3), DraftColumns(ids, VOCAB_SIZE)
    options = {"decay": 0.5, "regression": 0.0}
    found = rollout_loss(trainee, batch, columns.of(trainee, batch, 0), steps=3, **options).item()
    expected = 0.0
    for step, outputs in enumerate(trainee.rollout(batch, 3)):
        total = weight = 0.0
        logits = F.linear(trainee.read(outputs), trainee.lm_head.weight).log_softmax(-1)
        for row in batch.valid[step].nonzero().flatten().tolist():
            at = int(batch.rows[row]) + step + 1
            top = dict(zip(batch.top_ids[at].tolist(), batch.top_probs[at].tolist(), strict=True))
            known = {token: prob for token, prob in top.items() if token in ids.tolist()}
            share = sum(known.values()) / sum(top.values())
            total -= (
                share
                * sum(prob * float(logits[row, token - 10].detach()) for token, prob in known.items())
                / sum(known.values())
            )
            weight += share
        expected += 0.5**step * total / weight / 1.75
    assert found == pytest.approx(expected, rel=1e-4)


def test_regression_is_smooth_l1_on_the_targets_next_states(lesson):
    target, samples, _, heads = lesson
    trainee = heads["eagle2"]
    batch, columns = gathered(trainee, samples, 2), FullColumns(target.model.lm_head.weight)
    losses = [
        rollout_loss(trainee, batch, columns.of(trainee, batch, 0), steps=2, decay=1.0, regression=regression).item()
        for regression in (0.0, 2.0)
    ]
    expected = 0.0
    for step, outputs in enumerate(trainee.rollout(batch, 2)):
        rows = batch.valid[step]
        expected += F.smooth_l1_loss(outputs[rows], batch.final[batch.rows[rows] + step + 1]).item()
    assert losses[1] - losses[0] == pytest.approx(expected, rel=1e-4)


def test_sampled_columns_stand_for_the_whole_vocabulary(lesson):
    target, samples, ids, heads = lesson
    trainee, projection = heads["eagle2"], target.model.lm_head.weight.detach()
    batch = gathered(trainee, samples, 1)
    sampled = SampledColumns(projection, ids[:40], 5, seed=0)
    outputs = next(trainee.rollout(batch, 1)).detach() * 8
    true = (outputs @ projection.T).double().exp().sum(-1)
    sums = []
    for step in range(400):
        columns = sampled.of(trainee, batch, step)
        known = columns.place[torch.cat([ids[:40], batch.top_ids[:, 0]])]
        assert (known >= 0).all()
        assert (columns.bias[known] == 0).all()
        assert int((columns.bias > 0).sum()) == 5
        torch.testing.assert_close(columns.matrix[columns.place[ids[3]]], projection[ids[3]])
        sums.append((outputs @ columns.matrix.T + columns.bias).double().exp().sum(-1))
    mean = torch.stack(sums).mean(0)
    assert ((mean - true).abs() / true).mean() < 0.02
    again, other = sampled.of(trainee, batch, 7), sampled.of(trainee, batch, 8)
    assert torch.equal(again.place, sampled.of(trainee, batch, 7).place)
    assert not torch.equal(again.place, other.place)
    everything = SampledColumns(projection, ids[:40], 1000, seed=0).of(trainee, batch, 0)
    assert everything.matrix.shape == projection.shape
    assert not everything.bias.any()


def test_scores_by_hand():
    """Rows: all right; wrong at the third step; wrong at the first; a chain that the text cuts off; one unknown token."""
    ranks = torch.tensor([[0, 0, 2, 0, 80], [0, 0, 0, 1, 0], [0, 9, 0, -1, 0], [0, 0, 0, -1, 0], [0, 0, 0, -1, 0]])
    scores = _scores(ranks)
    assert scores.tokens == 5
    assert scores.top1 == pytest.approx([3 / 5, 4 / 5, 3 / 4, 1, 1])
    assert scores.top3 == pytest.approx([4 / 5, 1, 3 / 4, 1, 1])
    assert scores.top10 == pytest.approx([4 / 5, 1, 1, 1, 1])
    assert scores.chain == pytest.approx((6 + 3 + 1 + 1) / 4)
    assert scores.record()["top1"] == pytest.approx([0.6, 0.8, 0.75, 1, 1])


def test_measuring_counts_the_likeliest_token_of_the_target(lesson):
    """The first step's accuracy of both kinds, token by token."""
    target, samples, ids, heads = lesson
    for kind, columns in (
        ("eagle3", DraftColumns(ids, VOCAB_SIZE)),
        ("eagle2", FullColumns(target.model.lm_head.weight)),
    ):
        trainee = heads[kind]
        right = total = 0
        for sample in samples:
            batch = gathered(trainee, [sample], 1)
            outputs = trainee.read(next(trainee.rollout(batch, 1)))
            matrix = trainee.lm_head.weight if kind == "eagle3" else target.model.lm_head.weight
            best = (outputs @ matrix.T).argmax(-1)
            best = ids[best] if kind == "eagle3" else best
            wanted = [int(sample.top_ids[row + 1, 0]) for row in batch.rows.tolist()]
            right += sum(a == b for a, b in zip(best.tolist(), wanted, strict=True))
            total += len(wanted)
        scores = evaluate(trainee, {"letters": samples, "none": []}, columns, batch_tokens=30)
        assert list(scores) == ["letters"]
        assert scores["letters"].tokens == total
        assert scores["letters"].top1[0] == pytest.approx(right / total)
