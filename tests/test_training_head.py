"""A head in training against the same head at work: one step, and every chain that a rollout drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from talon_bench.drafters.checkpoint import LoadedHead
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.session import HeadDrafter
from talon_bench.errors import UsageError
from talon_bench.policies import Talon
from talon_bench.training import batch as batches
from talon_bench.training.autograd import ChainAttention, RMSNorm
from talon_bench.training.batch import collate
from talon_bench.training.build import Borrowed, new_trainee, trainee_of
from talon_bench.training.head import Trainee
from toy_training import LAYERS, small, taught

KINDS = ("eagle3", "eagle2")
STEPS = 4
EXACT = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def target(toy_target):
    return toy_target("llama")


@pytest.fixture(scope="module")
def samples(target):
    return [*taught(target, 3), *taught(target, 1, seed=1, answer_tokens=9)]


@pytest.fixture(scope="module", params=KINDS)
def trainee(request, target, samples) -> Trainee:
    """A head with random weights, norms and scales that all matter."""
    ids = torch.arange(3, 83)
    made, _ = new_trainee(small(request.param), Borrowed.of(target), LAYERS, ids, samples)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else noise * 0.7 * parameter.shape[1] ** -0.5)
    return made


def batch_of(trainee: Trainee, samples: list, **changes):
    spec = trainee.spec
    options = {"eagle3": spec.kind == "eagle3", "steps": STEPS, "group": spec.num_heads // spec.num_kv_heads}
    return collate(samples, **options | changes)


def at_work(trainee: Trainee, target):
    tensors = trainee.tensors()
    if trainee.spec.kind == "eagle3":
        tensors["d2t"] = torch.full((trainee.spec.draft_vocab_size,), 3)
    loaded = LoadedHead("trained", trainee.spec, tensors, "", (), "official")
    return (Eagle3Head if trainee.spec.kind == "eagle3" else Eagle1Head)(loaded, target)


def log_probs(trainee: Trainee, outputs: Tensor, target) -> Tensor:
    matrix = trainee.lm_head.weight if trainee.spec.kind == "eagle3" else target.model.lm_head.weight
    return F.linear(trainee.read(outputs), matrix).log_softmax(-1)


@torch.no_grad()
def test_every_chain_of_a_rollout_is_what_the_drafter_drafts(trainee, target, samples):
    """Rotary positions, shifted tokens, features, scales and the attention of each step, all in one."""
    batch = batch_of(trainee, samples)
    found = [log_probs(trainee, outputs, target) for outputs in trainee.rollout(batch, STEPS)]
    drafter = HeadDrafter(at_work(trainee, target), Talon(budget=20))
    rows = iter(range(len(batch.rows)))
    checked = 0
    for sample in samples:
        ids = sample.ids.tolist()
        features = sample.features if trainee.spec.kind == "eagle3" else sample.final
        for start in range(len(ids) - 2):
            if not sample.trained[start + 2]:
                continue
            row = next(rows)
            drafter.start(ids, len(ids) + 20)
            drafter.observe(ids[: start + 1], features[: start + 1])
            drafter.root = ids[start + 1]
            torch.testing.assert_close(found[0][row], drafter.root_log_probs(), **EXACT)
            for step in range(1, STEPS):
                if start + step + 2 >= len(ids):
                    assert not batch.valid[step:, row].any()
                    break
                drafted = drafter.expand(torch.tensor([ids[start + step + 1]]), torch.tensor([step - 2]))
                assert batch.valid[step, row]
                torch.testing.assert_close(found[step][row], drafted[0], **EXACT)
                checked += 1
    assert next(rows, None) is None
    assert checked > 150


@torch.no_grad()
def test_sequences_of_a_batch_do_not_see_each_other_and_blocks_change_nothing(trainee, samples, monkeypatch):
    whole = batch_of(trainee, samples)
    together = list(trainee.rollout(whole, STEPS))
    apart = [list(trainee.rollout(batch_of(trainee, [sample]), STEPS)) for sample in samples]
    monkeypatch.setattr(batches, "QUERIES", 7)
    blocked = batch_of(trainee, samples)
    assert len(blocked.blocks) > 2 * len(samples)
    for step, outputs in enumerate(trainee.rollout(blocked, STEPS)):
        valid = whole.valid[step]
        torch.testing.assert_close(torch.cat([own[step] for own in apart])[valid], together[step][valid], **EXACT)
        torch.testing.assert_close(outputs[valid], together[step][valid], **EXACT)


def test_gradients_reach_every_parameter_and_do_not_depend_on_blocks(trainee, samples, monkeypatch):
    def gradients() -> list[Tensor]:
        trainee.zero_grad()
        batch = batch_of(trainee, samples)
        for step, outputs in enumerate(trainee.rollout(batch, STEPS)):
            (trainee.read(outputs) * batch.valid[step][:, None]).square().sum().backward(retain_graph=True)
        return [parameter.grad.clone() for name, parameter in trainee.named_parameters() if name != "lm_head.weight"]

    whole = gradients()
    assert all(gradient.abs().sum() > 0 for gradient in whole)
    monkeypatch.setattr(batches, "QUERIES", 5)
    for blocked, gradient in zip(gradients(), whole, strict=True):
        torch.testing.assert_close(blocked, gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))


def double(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def test_the_norm_and_its_gradient():
    x, weight = double(5, 8), double(8, seed=1)
    torch.testing.assert_close(RMSNorm.apply(x, weight, 1e-5), F.rms_norm(x, (8,), weight, 1e-5))
    assert torch.autograd.gradcheck(lambda x, weight: RMSNorm.apply(x, weight, 1e-5), (x, weight))


def test_the_gradient_of_the_attention_with_two_sequences_and_chains(monkeypatch):
    monkeypatch.setattr(batches, "QUERIES", 3)
    rows = torch.tensor([1, 2, 3, 5]), torch.tensor([0, 2])
    blocks = [
        block
        for own, start, first in zip(rows, (0, 6), (0, 4), strict=True)
        for block in batches._blocks(own, start, first, 2, torch.float64, "cpu")
    ]
    query, keys, values = double(6, 4, 3), double(9, 2, 3, seed=1), double(9, 2, 3, seed=2)
    chain = [double(6, 2, 3, seed=seed) for seed in range(3, 7)]
    assert len(blocks) == 3
    assert torch.autograd.gradcheck(
        lambda q, k, v, *chain: ChainAttention.apply(q, k, v, blocks, *chain), (query, keys, values, *chain)
    )
    # The second query of the second sequence, written out: context 0 to 2 of its own, then its chain.
    seen_keys = torch.cat([keys[6:9], chain[0][5:6], chain[2][5:6]])
    seen_values = torch.cat([values[6:9], chain[1][5:6], chain[3][5:6]])
    for head in range(4):
        weights = (seen_keys[:, head // 2] @ query[5, head] * 3**-0.5).softmax(0)
        found = ChainAttention.apply(query, keys, values, blocks, *chain)[5, head]
        torch.testing.assert_close(found, weights @ seen_values[:, head // 2])


def test_heads_with_parts_that_training_lacks_are_refused(trainee):
    spec = replace(trainee.spec, attention_bias=True)
    with pytest.raises(UsageError, match="attention_bias, which the trainer does not know"):
        trainee_of(spec, trainee.embedding, trainee.scale)


def test_bfloat16_activations_stay_near(trainee, samples):
    exact = list(trainee.rollout(batch_of(trainee, samples), STEPS))
    batch = batch_of(trainee, samples, dtype=torch.bfloat16)
    outputs = list(trainee.rollout(batch, STEPS))
    assert outputs[-1].dtype is torch.bfloat16
    outputs[-1].float().square().mean().backward()
    for found, expected in zip(outputs, exact, strict=True):
        valid = slice(0, 10)
        assert (found[valid].float() - expected[valid]).norm() < 0.1 * expected[valid].norm()
