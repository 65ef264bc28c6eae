"""A toy head from data to draft: trained, exported in the official format, loaded, drafting without loss; its card."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.drafters.base import NoDrafter
from talon_bench.drafters.checkpoint import load_head
from talon_bench.drafters.eagle1 import Eagle1Head
from talon_bench.drafters.eagle3 import Eagle3Head
from talon_bench.drafters.session import HeadDrafter
from talon_bench.errors import UsageError
from talon_bench.policies import Talon
from talon_bench.sampling import Sampler
from talon_bench.schema import LaunchConfig, TargetConfig
from talon_bench.training import stage
from talon_bench.training.checkpoint import Checkpoint, read_points
from talon_bench.training.curve import figure, main, table
from talon_bench.training.export import export
from talon_bench.training.schema import SourceConfig, TrainConfig, TrainingConfig
from talon_bench.training.shards import Sample, ShardFacts, write_shard
from talon_bench.training.trainer import train
from toy_training import LAYERS, in_a_process, small, stop_at, taught
from toys import VOCAB_SIZE, write_toy_target

PROMPTS = ([20, 31, 55, 60, 72, 44], [80, 15, 38, 90, 27, 33], [66, 52, 19, 88, 47, 71])


@pytest.fixture(scope="module")
def target(toy_target):
    return toy_target("llama")


@pytest.fixture(scope="module")
def work(target, toy_folders, tmp_path_factory) -> Path:
    """A work folder with shards of 150 answers, and what the stages before them note."""
    folder = tmp_path_factory.mktemp("work")
    facts = ShardFacts(
        target="llama",
        sha256=_sha256(toy_folders.target("llama")),
        dtype="float32",
        layers=LAYERS,
        hidden_size=32,
        vocab_size=target.shape.vocab_size,
        top_k=16,
        final=True,
    )
    counts = {}
    for split, count, seed in (("train", 150, 0), ("held_out", 16, 77)):
        (folder / "features" / split).mkdir(parents=True)
        sequences = [
            Sample(**{**vars(found), "features": found.features.bfloat16(), "final": found.final.bfloat16()})
            for found in taught(target, count, seed=seed)
        ]
        families = ["letters" if number % 2 else "signs" for number in range(count)]
        write_shard(folder / "features" / split / f"{split}-00000.safetensors", facts, sequences, families)
        counts[split] = {"sequences": count}
    stage.Stage(folder, "features", {}).finish(counts)
    source = {
        "use": "prompts",
        "licence": "MIT",
        "rows": 170,
        "dropped": {"repeated": 12},
        "trained": 150,
        "held_out": 8,
    }
    (folder / "prompts").mkdir()
    stage.write_json(folder / "prompts" / "sources.json", {"letters": source})
    return folder


def _sha256(folder: Path) -> str:
    from talon_bench.checksum import sha256_of

    return sha256_of(folder / "model.safetensors")


def config_of(toy_folders, work: Path, kind: str, **changes: object) -> TrainConfig:
    settings = {"steps": 150, "batch_tokens": 300, "lr": 1e-2, "warmup": 20, "evaluate_steps": 75} | changes
    return TrainConfig(
        target=TargetConfig(name="llama", path=str(toy_folders.target("llama")), dtype="float32"),
        training=TrainingConfig(sources={"letters": SourceConfig(loader="x", licence="MIT", file="y")}),
        trainer=small(kind, **settings),
        work=str(work),
        launch=LaunchConfig(device="cpu", threads=1),
    )


@pytest.fixture(scope="module", params=["eagle3", "eagle2"])
def trained(request, toy_folders, work) -> tuple[TrainConfig, Path]:
    """(config, exported folder) of a head of each kind."""
    config = config_of(toy_folders, work, request.param)
    train(config, work)
    return config, export(config, work)


def answer(target, drafter, prompt: list[int]) -> tuple[list[int], list[int]]:
    """(ids, tokens per verification)."""
    found = Answer(frozenset(), 40)
    rounds = decode(target, drafter, prompt, found, sampler=Sampler(), generator=torch.Generator(), clock=PhaseClock())
    emitted = [round_.emitted for round_ in rounds]
    return found.ids, emitted


def test_training_makes_a_head_that_drafts_without_loss(trained, target, work):
    config, folder = trained
    kind = config.trainer.kind
    first, *_, last = read_points(work / "train" / kind)
    for family in ("letters", "signs"):
        before, after = first["families"][family], last["families"][family]
        assert after["top1"][0] > before["top1"][0] + 0.25
        assert after["top1"][3] > before["top1"][3] + 0.15
        assert after["chain"] > before["chain"] + 0.15
    assert last["loss"] < read_points(work / "train" / kind)[1]["loss"]
    loaded = load_head(folder, target.shape, name=kind)
    target.tap(loaded.spec.feature_layers)
    drafter = HeadDrafter((Eagle3Head if kind == "eagle3" else Eagle1Head)(loaded, target), Talon(budget=16))
    counts = []
    for prompt in PROMPTS:
        ids, emitted = answer(target, drafter, prompt)
        assert ids == answer(target, NoDrafter(target.device), prompt)[0]
        counts += emitted
    assert sum(counts) / len(counts) > 1.5


def test_the_files_are_those_of_the_official_format(trained, target):
    config, folder = trained
    raw = load_file(folder / "model.safetensors")
    loaded = load_head(folder, target.shape, name="h")
    assert not loaded.warnings
    assert loaded.layout == "official"
    assert loaded.spec.rope_theta == 10000.0
    assert "origin" not in raw
    layer = "midlayer." if config.trainer.kind == "eagle3" else "layers.0."
    names = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
    names |= {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"}
    expected = {f"{layer}{name}.weight" for name in names} | {"fc.weight"}
    if config.trainer.kind == "eagle3":
        expected |= {"midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight", "norm.weight", "lm_head.weight"}
        expected |= {"d2t", "t2d"}
        assert loaded.spec.draft_vocab_size == 80
        assert loaded.spec.feature_layers == LAYERS
    assert raw.keys() == expected
    assert {tensor.dtype for name, tensor in raw.items() if name not in ("d2t", "t2d")} == {torch.bfloat16}


def test_the_card_tells_how_the_head_was_made(trained, work):
    config, folder = trained
    text = (folder / "README.md").read_text()
    last = read_points(work / "train" / config.trainer.kind)[-1]
    assert "license: apache-2.0" in text
    assert "| letters | answered by the target | MIT | 170 | 12 repeated | 150 | 8 |" in text
    assert "150 sequences with 3,600 tokens of answers were trained on" in text
    assert "150 steps of AdamW" in text
    assert f"{last['tokens']:,} trained tokens" in text
    assert f"| {last['families']['signs']['chain']:.2f} |" in text
    facts = stage.read(work / "train" / config.trainer.kind)["facts"]
    assert facts["target"]["sha256"] in text
    assert load_head(folder, _shape(facts), name="h").sha256 in text
    assert str(work) not in text
    assert [line for line in text.splitlines() if len(line) > 130 and not line.startswith("|")] == []


def _shape(facts: dict):
    from talon_bench.drafters.spec import TargetShape

    return TargetShape(facts["target"]["name"], 32, VOCAB_SIZE, 8)


def test_what_is_finished_is_left_alone_and_other_settings_are_refused(trained, work):
    config, _ = trained
    file = work / "train" / config.trainer.kind / "checkpoint.pt"
    before = file.stat().st_mtime_ns
    train(replace(config, trainer=replace(config.trainer, evaluate_steps=7)), work)
    assert file.stat().st_mtime_ns == before
    with pytest.raises(UsageError, match=r"trainer\.lr=0\.01, now it is 0\.02"):
        train(replace(config, trainer=replace(config.trainer, lr=0.02)), work)
    with pytest.raises(UsageError, match="was not run yet"):
        export(replace(config, trainer=replace(config.trainer, name="other")), work)


def test_shards_and_heads_of_another_target_are_refused(trained, work, target, tmp_path):
    config, folder = trained
    other = write_toy_target(tmp_path / "other", seed=1)
    for name, message in (
        ("tiny", "shards of target llama found, tiny expected"),
        ("llama", "shards of checkpoint sha256"),
    ):
        changed = TargetConfig(name=name, path=str(other), dtype="float32")
        begun = replace(
            config, target=changed, trainer=replace(config.trainer, name=f"{config.trainer.kind}_of_{name}")
        )
        with pytest.raises(UsageError, match=message):
            train(begun, work)
    with pytest.raises(UsageError, match="belongs to another target"):
        load_head(folder, replace(target.shape, hidden_size=48), name="h")


def test_the_curves_become_a_table_and_a_figure(trained, work, tmp_path, capsys):
    config, _ = trained
    folder = work / "train" / config.trainer.kind
    frame = table([folder])
    assert list(frame["family"]) == ["letters", "signs", "mean"] * 3
    one = frame[(frame["step"] == 150)].drop_duplicates("family").set_index("family")
    assert one.loc["mean", "chain"] == pytest.approx(one.loc[["letters", "signs"], "chain"].mean(), abs=1e-5)
    plot = figure(frame)
    assert [axis.get_title() for axis in plot.figure.axes] == ["letters", "signs", "mean"]
    letters = frame[(frame["family"] == "letters") & (frame["training"] == config.trainer.kind)]
    assert [list(line.get_ydata()) for line in plot.figure.axes[0].lines] == [letters["chain"].tolist()]
    assert main([str(folder), "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"learning_curve.{ending}" for ending in ("csv", "pdf", "png", "txt")
    ]
    assert main([str(tmp_path), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_killed_command_goes_on_to_the_same_bits(toy_folders, work):
    """kill -9 in the middle of step 6 of 8, then the same command, against one that ran through."""
    options = {"steps": 8, "evaluate_steps": 4, "batch_tokens": 100, "checkpoint_minutes": 1e-9}
    whole, killed = (config_of(toy_folders, work, "eagle3", name=name, **options) for name in ("whole", "killed"))
    train(whole, work)

    def until_killed() -> None:
        stop_at(6, signal.SIGKILL)
        train(killed, work)

    assert in_a_process(until_killed) == -signal.SIGKILL
    assert Checkpoint.load(work / "train" / "killed").position.step == 5
    assert not stage.read(work / "train" / "killed")["complete"]
    train(killed, work)
    expected, found = (Checkpoint.load(work / "train" / name) for name in ("whole", "killed"))
    assert expected.position.step == found.position.step == 8
    for name, tensor in expected.weights.items():
        assert torch.equal(found.weights[name], tensor), name
    for name in ("whole", "killed"):
        export(config_of(toy_folders, work, "eagle3", name=name, **options), work)
    files = [work / "heads" / name / "model.safetensors" for name in ("whole", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()
