"""The learning curve on Weights & Biases: what is sent, and that no failure of it reaches the training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from talon_bench.errors import UsageError
from talon_bench.schema import TrackingConfig
from talon_bench.training.wandb_curve import NoCurve, make_curve

POINT = {
    "step": 7,
    "tokens": 100,
    "loss": None,
    "lr": 0.5,
    "families": {"code": {"tokens": 9, "top1": [0.5, None], "top3": [0.6, 0.4], "top10": [0.7, 0.6], "chain": 1.5}},
}


class Recorder:
    def __init__(self) -> None:
        self.begun: dict = {}
        self.sent: list[tuple[dict, int]] = []
        self.broken = False

    def Settings(self, **settings: object) -> dict:
        return settings

    def init(self, **options: object) -> Recorder:
        if self.broken:
            raise RuntimeError("no network\nat all")
        self.begun = options
        return self

    def log(self, values: dict, step: int) -> None:
        if self.broken:
            raise RuntimeError("no network")
        self.sent.append((values, step))

    def finish(self) -> None:
        self.begun = {}


@pytest.fixture
def wandb(monkeypatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    return recorder


def on(folder: Path) -> NoCurve:
    return make_curve(TrackingConfig(kind="wandb", project="p", group="g"), folder, {"lr": 1.0}, "identity")


def test_points_are_sent_under_names_that_tell_family_and_step(wandb, tmp_path):
    curve = on(tmp_path)
    assert wandb.begun["project"] == "p"
    assert wandb.begun["config"] == {"lr": 1.0}
    assert wandb.begun["settings"]["disable_git"] is True
    curve.point(POINT)
    curve.finish()
    expected = {"step": 7, "tokens": 100, "lr": 0.5, "chain/code": 1.5, "top1/code/step_1": 0.5}
    expected |= {"top3/code/step_1": 0.6, "top3/code/step_2": 0.4, "top10/code/step_1": 0.7, "top10/code/step_2": 0.6}
    assert wandb.sent == [(expected, 7)]
    assert wandb.begun == {}


def test_a_training_that_goes_on_keeps_its_run(wandb, tmp_path):
    on(tmp_path)
    first = wandb.begun["id"]
    on(tmp_path)
    assert wandb.begun["id"] == first
    assert wandb.begun["resume"] == "allow"


def test_failures_are_one_warning(wandb, tmp_path, capsys):
    curve = on(tmp_path)
    wandb.broken = True
    curve.point(POINT)
    curve.point(POINT)
    on(tmp_path).point(POINT)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["warning: Weights & Biases failed (no network); the curve is in curve.jsonl"] * 2


def test_without_a_wish_nothing_is_imported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: pytest.fail("wandb was started")))
    for config in (TrackingConfig(), TrackingConfig(kind="wandb", mode="disabled")):
        curve = make_curve(config, tmp_path, {}, "")
        curve.point(POINT)
        curve.finish()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="which is not installed"):
        on(tmp_path)
