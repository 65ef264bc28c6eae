"""Training of toy heads: what it reaches, that it goes on exactly where it was killed, and that it stops when asked."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest
import torch

from talon_bench.drafters.checkpoint import load_head
from talon_bench.errors import UsageError
from talon_bench.training.build import Borrowed, new_trainee, trainee_of
from talon_bench.training.checkpoint import Checkpoint, read_points
from talon_bench.training.evaluate import evaluate
from talon_bench.training.loss import DraftColumns
from talon_bench.training.shards import Sample
from talon_bench.training.trainer import Training
from talon_bench.training.wandb_curve import NoCurve
from toy_training import LAYERS, Listed, in_a_process, small, stop_at, taught
from toys import VOCAB_SIZE

IDS = torch.arange(10, 90)


@pytest.fixture(scope="module")
def target(toy_target):
    return toy_target("llama")


@pytest.fixture(scope="module")
def samples(target):
    return taught(target, 12)


@pytest.fixture(scope="module")
def held_out(target):
    return {"letters": taught(target, 4, seed=9), "more": taught(target, 2, seed=10)}


def begin(target, samples, families, **settings) -> Training:
    """A training that was never run."""
    config = small(**{"kind": "eagle3", **settings})
    borrowed = Borrowed.of(target)
    trainee, ids = new_trainee(config, borrowed, LAYERS, IDS, samples)
    return Training(config, trainee, ids, borrowed.projection, Listed(samples), families)


def go_on(target, samples, families, folder: Path, **settings) -> Training:
    """A training from the folder's checkpoint."""
    config, borrowed, saved = small(**{"kind": "eagle3", **settings}), Borrowed.of(target), Checkpoint.load(folder)
    trainee = trainee_of(saved.spec, borrowed.embedding, saved.weights["scale"])
    training = Training(config, trainee, saved.ids, borrowed.projection, Listed(samples), families)
    training.restore(saved)
    return training


def points_without_time(folder: Path) -> list[dict]:
    return [{key: value for key, value in point.items() if key != "seconds"} for point in read_points(folder)]


def run_until(number: int, step: int, target, samples, families, folder: Path, **settings) -> None:
    stop_at(step, number)
    begin(target, samples, families, **settings).run(folder, NoCurve())


@pytest.mark.parametrize(
    "settings",
    [{"kind": "eagle3", "ema": 0.9}, {"kind": "eagle2"}, {"kind": "eagle3", "optimizer": "muon", "ramp": 0.75}],
    ids=["eagle3", "eagle2", "muon"],
)
def test_a_killed_training_ends_with_the_weights_of_one_that_was_not(settings, target, samples, held_out, tmp_path):
    """kill -9 in the middle of step 9 of 12; bit for bit, and with the same learning curve."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    begin(target, samples, held_out, **settings).run(whole, NoCurve())
    status = in_a_process(
        lambda: run_until(signal.SIGKILL, 9, target, samples, held_out, killed, checkpoint_minutes=1e-9, **settings)
    )
    assert status == -signal.SIGKILL
    assert Checkpoint.load(killed).position.step == 8
    assert [point["step"] for point in read_points(killed)] == [0, 6]
    go_on(target, samples, held_out, killed, **settings).run(killed, NoCurve())
    expected, found = Checkpoint.load(whole), Checkpoint.load(killed)
    assert found.position.step == expected.position.step == 12
    assert found.position.tokens == expected.position.tokens
    assert found.weights.keys() == expected.weights.keys()
    for name, tensor in expected.weights.items():
        assert torch.equal(found.weights[name], tensor), name
    for own, other in zip(found.average or [], expected.average or [], strict=True):
        assert torch.equal(own, other)
    assert points_without_time(killed) == points_without_time(whole)
    assert [point["step"] for point in read_points(whole)] == [0, 6, 12]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 1)])
def test_a_training_that_is_asked_to_stop_saves_first(number, status, target, samples, tmp_path):
    found = in_a_process(lambda: run_until(number, 4, target, samples, {}, tmp_path))
    assert found == status
    assert Checkpoint.load(tmp_path).position.step == 4


def test_points_behind_the_checkpoint_are_reached_again_and_not_doubled(target, samples, tmp_path):
    training = begin(target, samples, {}, steps=6, evaluate_steps=2)
    training.run(tmp_path, NoCurve())
    with (tmp_path / "curve.jsonl").open("a") as file:
        file.write(json.dumps({"step": 8}) + "\n" + '{"step": 1')
    again = go_on(target, samples, {}, tmp_path, steps=10, evaluate_steps=2)
    again.run(tmp_path, NoCurve())
    assert [point["step"] for point in read_points(tmp_path)] == [0, 2, 4, 6, 8, 10]


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UsageError, match="cannot be read"):
        Checkpoint.load(tmp_path)
    assert Checkpoint.load(tmp_path / "nothing") is None


def test_the_length_and_the_rate_follow_from_settings_and_data(target, samples):
    tokens = sum(int(sample.trained.sum()) for sample in samples)
    assert begin(target, samples, {}, steps=7).total_steps == 7
    assert begin(target, samples, {}, steps=None, tokens=1000).total_steps == 10
    assert begin(target, samples, {}, steps=None, epochs=2.5).total_steps == round(2.5 * tokens / 100)
    training = begin(target, samples, {}, steps=23, warmup=3, lr=1.0, final_lr=0.1)
    assert [training.rate(step) for step in (0, 1, 2, 3, 13, 23)] == pytest.approx([1 / 3, 2 / 3, 1, 1, 0.55, 0.1])
    part = begin(target, samples, {}, steps=None, epochs=1.0, max_data_tokens=3 * 24)
    assert part.facts()["data_tokens"] == 3 * 24
    assert part.total_steps == 1
    more = begin(target, samples, {}, max_data_tokens=5 * 24)
    assert {n for n, count in enumerate(part._counts) if count} < {n for n, count in enumerate(more._counts) if count}


def test_the_unroll_grows_evenly_up_to_the_end_of_the_ramp(target, samples):
    training = begin(target, samples, {}, steps=12, unroll=4, ramp=0.5)
    assert [training.unroll(step) for step in range(12)] == [1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4]
    assert {begin(target, samples, {}, steps=12, unroll=4).unroll(step) for step in range(12)} == {4}


def test_muon_moves_every_matrix_of_the_layer_by_updates_without_a_preferred_direction(target, samples):
    """One step changes a matrix of the layer by singular values that are nearly alike, the output projection as AdamW does."""
    training = begin(target, samples, {}, optimizer="muon", lr=1e-3, warmup=0)
    before = {name: weight.detach().clone() for name, weight in training.trainee.named_parameters()}
    training._step([0, 1, 2])
    for name, weight in training.trainee.named_parameters():
        change = weight.detach() - before[name]
        assert change.abs().max() > 0, name
        if weight.dim() == 2 and name != "lm_head.weight":
            spread = torch.linalg.svdvals(change)
            assert spread[0] < 0.3 * 1e-3 * max(change.shape) ** 0.5, name  # 0.2 sqrt(larger side), times at most 1.5
            assert spread[len(spread) // 2] > 0.4 * spread[0], name
    moved = (training.trainee.lm_head.weight.detach() - before["lm_head.weight"]).abs()
    assert moved.max() == pytest.approx(1e-3, rel=1e-3)


def test_a_loss_that_is_not_finite_ends_the_training(target, samples, tmp_path):
    training = begin(target, samples, {})
    with torch.no_grad():
        training.trainee.norm.weight[0] = math.nan
    with pytest.raises(UsageError, match=r"the loss of step 0 is nan; lower trainer\.lr"):
        training.run(tmp_path, NoCurve())


def test_an_average_of_the_weights_is_measured_and_lags_behind(target, samples, held_out, tmp_path):
    training = begin(target, samples, held_out, ema=0.999)
    training.run(tmp_path, NoCurve())
    first, *_, last = read_points(tmp_path)
    plain = begin(target, samples, held_out)
    plain.run(tmp_path, NoCurve())
    assert last["families"]["letters"]["top10"][0] - first["families"]["letters"]["top10"][0] < 0.05
    assert read_points(tmp_path)[-1]["families"]["letters"]["top10"][0] > last["families"]["letters"]["top10"][0]
    saved = training.checkpoint()
    assert not torch.equal(saved.average[0], saved.weights["fc.weight"])


@pytest.mark.parametrize("kind", ["eagle3", "eagle2"])
def test_a_head_on_disk_is_gone_on_from(kind, target, samples, held_out, toy_folders):
    """Before its first step it scores what it scored, though inputs are scaled by other features."""
    folder = toy_folders.head("llama", "eagle3" if kind == "eagle3" else "eagle")
    config = small(kind, init_from=str(folder))
    borrowed = Borrowed.of(target)
    if kind == "eagle2":
        with pytest.raises(UsageError, match="has fc_bias, which the trainer does not know"):
            new_trainee(config, borrowed, LAYERS, IDS, samples)
        return
    trainee, ids = new_trainee(config, borrowed, LAYERS, IDS, samples)
    loaded = load_head(folder, target.shape, name="toy")
    assert torch.equal(ids, torch.arange(80) + loaded.tensors["d2t"])
    for name, tensor in trainee.tensors().items():
        torch.testing.assert_close(tensor, loaded.tensors[name])
    with pytest.raises(UsageError, match=r"reads layers \(2, 4, 5\), the shards hold \(1, 4, 5\)"):
        new_trainee(config, borrowed, (1, 4, 5), IDS, samples)
    with pytest.raises(UsageError, match="holds a head of kind eagle3"):
        new_trainee(small("eagle2", init_from=str(folder)), borrowed, LAYERS, IDS, samples)


def told_by_features(count: int, seed: int, codes: torch.Tensor) -> list[Sample]:
    """Random tokens, of which each is known two positions before, from the features alone."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        ids = torch.randint(10, 90, (32,), generator=generator)
        top_ids = ids.roll(-1)[:, None]
        features = codes[ids.roll(-2)]
        log_probs = torch.zeros(32, 1, dtype=torch.float16)
        found.append(Sample(ids.int(), torch.arange(32) >= 4, features, None, top_ids.int(), log_probs))
    return found


def test_a_head_that_reads_features_fails_when_they_are_shuffled(target, tmp_path):
    codes = torch.randn(VOCAB_SIZE, 96, generator=torch.Generator().manual_seed(0))
    families = {"new": told_by_features(8, 1, codes)}
    settings = {"steps": 120, "batch_tokens": 200, "lr": 1e-2, "unroll": 1, "evaluate_steps": 120}
    training = begin(target, told_by_features(60, 0, codes), families, **settings)
    training.run(tmp_path, NoCurve())
    columns = DraftColumns(IDS, VOCAB_SIZE)
    true = evaluate(training.trainee, families, columns)["new"]
    shuffled = evaluate(training.trainee, families, columns, shuffle=True)["new"]
    assert true.top1[0] > 0.9
    assert shuffled.top1[0] < 0.1
    assert true.chain > 1.9 > 1.15 > shuffled.chain
