"""One job from config to results on toys: what is recorded, what decides a run's identity, what makes it unfit."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ToyFolders
from talon_bench import decode, job, loading
from talon_bench.bench import Bench
from talon_bench.compose import compose_config
from talon_bench.errors import UsageError
from talon_bench.lineup import resolve
from talon_bench.prompts.source import load_prompts
from talon_bench.provenance import without_folders, without_folders_in
from talon_bench.report.load import load_run
from talon_bench.verify import Acceptance
from toy_runs import rows, toy_overrides, write_prompts
from toys import VOCAB_SIZE, write_toy_target


@pytest.fixture
def base(toy_folders: ToyFolders, tmp_path: Path) -> list[str]:
    return toy_overrides(toy_folders, tmp_path)


@pytest.fixture
def run(base: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., job.Outcome]:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 1.0)
    return lambda *overrides: job.run(compose_config([*base, *overrides]))


def folder(outcome: job.Outcome) -> Path:
    return Path(outcome.result["run_dir"])


def info(outcome: job.Outcome) -> dict:
    return json.loads((folder(outcome) / "run.json").read_text(encoding="utf-8"))


def wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that draft end each round on the least likely token."""
    real = decode.accept

    def accept(tree, logits, *rest, **how) -> Acceptance:
        kept = real(tree, logits, *rest, **how)
        return kept if tree.size == 1 else replace(kept, next_token=int(logits[kept.path[-1]].argmin()))

    monkeypatch.setattr(decode, "accept", accept)


def test_run_json_says_what_was_run(run: Callable, base: list[str]) -> None:
    written = info(run("dataset.limit=2"))
    assert list(written)[:4] == ["schema", "status", "identity", "target"]
    assert (written["schema"], written["status"], written["target"], written["left_out"]) == (1, "complete", "toy", [])
    assert list(written["methods"]) == ["ar", "eagle3_small", "talon_small"]
    assert written["methods"]["talon_small"] == {
        "policy": "talon",
        "label": "TALON (6 nodes)",
        "head": "eagle3",
        "budget": 6,
        "root_top_k": 2,
        "alpha": 0.03,
        "init_layers": 1,
        "lossless": True,
    }
    assert written["decode"] == {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 12, "seed": 0}
    dataset = written["dataset"]
    assert (dataset["name"], dataset["source"], dataset["origin"]) == ("gsm8k", "local", "gsm8k/test.jsonl")
    assert (dataset["available"], dataset["selected"], len(dataset["sha256"])) == (4, 2, 64)
    assert list(written["heads"]) == ["eagle3"]
    assert (written["heads"]["eagle3"]["name"], written["heads"]["eagle3"]["feature_layers"]) == (
        "local-eagle3",
        [2, 4, 5],
    )
    checkpoint = written["checkpoint"]
    assert (checkpoint["source"], checkpoint["dtype"], checkpoint["engine"]) == ("local folder", "float32", "stock")
    assert (checkpoint["window"], len(checkpoint["sha256"])) == (4096, 64)
    machine = written["provenance"]
    assert (machine["threads"], machine["dtype"], machine["gpu"], machine["busy"]) == (1, "float32", None, False)
    assert machine["torch"] == torch.__version__
    assert machine["started"] <= machine["finished"]
    assert {"load_before", "load_after", "cpu", "cores", "git_commit", "python", "transformers"} <= set(machine)
    assert written["config"]["method"]["name"] == "talon_small"
    assert written["windows"] == {"head": 0}
    text = (Path(__file__).parents[1] / "docs" / "records.md").read_text(encoding="utf-8")
    keys = {*written, *machine, *checkpoint, *dataset, *written["decode"]}
    assert sorted(key for key in keys if f"`{key}`" not in text) == []


def test_the_folders_of_the_machine_are_not_written_down() -> None:
    found = without_folders({"a": "/home/ada/x", "b": ["~/data", {"c": "outputs/y"}], "d": 3, "e": None})
    assert found == {"a": ".../x", "b": [".../data", {"c": "outputs/y"}], "d": 3, "e": None}
    shown = {"dataset": {"system": "/no_think"}, "target": {"chat_template": "/{{ messages }}"}}
    assert without_folders(shown) == shown, "what a model is shown is recorded as it is"


@pytest.mark.parametrize(
    ("path", "written"),
    [
        *(
            (home, "...")
            for home in ("/home/ada", "/home/ada/", "//home/ada", "/Users/ada", "/home/ada/x/..", "/srv/people/ada")
        ),
        *((home, "...") for home in ("~", "~/", "~ada", "~ada/", "/")),
        *(
            (path, ".../data")
            for path in ("~ada/data", "~/data/", "/srv/people/ada/data", "/srv/data", "/Users/ada/My Files/data")
        ),
        *((text, text) for text in ("outputs/home/ada", "a~b", "~ 5", "5 ~ 6", "TALON (60 nodes)", "")),
    ],
)
def test_a_home_folder_is_not_written_down(path: str, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last part would be the name of a user."""
    monkeypatch.setenv("HOME", "/srv/people/ada")
    assert without_folders(path) == written


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ("[Errno 2] No such file: '/home/ada/models/x.bin'", "[Errno 2] No such file: '.../x.bin'"),
        ("~/heads/x is no head, nor is /srv/y/z", ".../x is no head, nor is .../z"),
        ("see https://example.org/a/b and conf/target/x.yaml, 1 / 2", None),
        ("size [2, 3] and/or [4]", None),
        ("cannot read /home/ada: denied", "cannot read ...: denied"),
        ("'/Users/ada' or '/srv/people/ada/' is a folder", "'...' or '...' is a folder"),
        ("~ada/heads/x is no head, ~ada and ~/ are none", ".../x is no head, ... and ... are none"),
        ("error:/srv/y/z in file:///home/ada/x", "error:.../z in file://.../x"),
        ("https://example.org/~ada/x, ~5 nodes, 3 ~ 4, a~b, /", None),
    ],
)
def test_the_folders_in_a_message_are_not_written_down(
    message: str, written: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/srv/people/ada")
    assert without_folders_in(message) == (message if written is None else written)


def test_methods_without_a_head_are_named_in_the_records(run: Callable) -> None:
    outcome = run("lineup=table2", "head.eagle2.path=null", "dataset.limit=1")
    assert info(outcome)["left_out"] == ["eagle2", "talon_eagle2"]
    assert list(outcome.result["methods"]) == ["ar", "ar_again", "ar_eager", "eagle3", "talon", "talon_small"]


def test_answers_beyond_a_heads_window_are_counted(run: Callable, tmp_path: Path, toy_folders: ToyFolders) -> None:
    head = shutil.copytree(toy_folders.head("llama", "eagle3"), tmp_path / "head")
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    outcome = run(f"head.eagle3.path='{head}'", "lineup=baseline")
    beyond = [row["prompt_tokens"] + 12 > 40 for row in rows(folder(outcome), "turns")]
    assert True in beyond
    assert False in beyond
    assert info(outcome)["windows"] == {"head": sum(beyond)}
    assert run("lineup=baseline", "decode.seed=1").fault is None


@pytest.fixture
def identity(base: list[str]) -> Callable[..., str]:
    def of(*overrides: str) -> str:
        config = compose_config([*base, *overrides])
        return job._identity(config, resolve(config)[0], load_prompts(config.dataset, config.data))

    return of


@pytest.mark.parametrize(
    "override",
    [
        *("run.root=elsewhere", "run.dir=here", "run.fresh=true", "run.warmup_tokens=9"),
        *("tracking=wandb", "lineup.name=other", "dataset.limit=4"),
    ],
)
def test_where_a_run_goes_and_who_watches_do_not_change_its_identity(identity: Callable, override: str) -> None:
    assert identity(override) == identity()


@pytest.mark.parametrize(
    "override",
    [
        *("target.dtype=bfloat16", "target.name=other", "target.chat_template=x", "head.eagle3.rope_theta=1e6"),
        *("method.alpha=0.1", "lineup=noise", "+sweep=alpha", "decode.seed=1", "decode.temperature=1"),
        *("decode.max_new_tokens=13", "dataset.max_new_tokens=13", "dataset.limit=3", "dataset.offset=1"),
        *("dataset.shuffle_seed=1", "dataset.system=Hi", "dataset=mt_bench", "launch.threads=2", "launch.device=cpu"),
    ],
)
def test_whatever_changes_rows_changes_the_identity(identity: Callable, override: str) -> None:
    assert identity(override) != identity()


def test_turns_and_texts_belong_to_the_identity(identity: Callable, tmp_path: Path) -> None:
    assert identity("dataset=mt_bench", "dataset.turns=1") != identity("dataset=mt_bench")
    before = identity()
    write_prompts(tmp_path / "data", questions=("Add 2 and 4.", "Half of 9?", "7 x 6 =", "Why?"))
    assert identity() != before


def test_a_finished_run_is_reported_without_a_model(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("dataset.limit=1")
    monkeypatch.setattr(job, "load_target", lambda *_: pytest.fail("loaded a model"))
    monkeypatch.setattr(job, "_targets", {})
    assert run("dataset.limit=1") == first


def test_a_run_folder_may_lie_in_the_users_home(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for where in ("run.dir='~/here'", "run.root='~/runs'"):
        assert folder(run("dataset.limit=1", "lineup=baseline", where)).is_relative_to(tmp_path / "home")


def test_jobs_that_share_a_target_load_it_once(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    monkeypatch.setattr(job, "_targets", {})
    monkeypatch.setattr(job, "load_target", lambda *given: loads.append(given) or loading.load_target(*given))
    run("dataset.limit=1")
    run("dataset.limit=1", "method.alpha=0.5")
    assert len(loads) == 1
    first = weakref.ref(next(iter(job._targets.values())).target)
    assert first() is not None
    run("dataset.limit=1", "target.name=other")
    assert len(loads) == 2
    assert first() is None, "two targets may not fit into memory"


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_interrupted_run_resumes_to_the_rows_of_an_uninterrupted_one(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: int
) -> None:
    request = ("dataset=mt_bench", f"decode.temperature={temperature}")
    whole = folder(run(*request, f"run.dir='{tmp_path / 'whole'}'"))
    parted = tmp_path / "parted"
    real, measured = Bench.measure, []

    def measure(self: Bench, number: int, *rest: object, **options: object):
        if len(measured) == 1:
            raise KeyboardInterrupt
        measured.append(number)
        return real(self, number, *rest, **options)

    monkeypatch.setattr(Bench, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        run(*request, f"run.dir='{parted}'")
    with pytest.raises(UsageError, match="has status 'running'"):
        load_run(parted)
    monkeypatch.setattr(
        Bench,
        "measure",
        lambda self, number, *rest, **options: measured.append(number) or real(self, number, *rest, **options),
    )
    run(*request, f"run.dir='{parted}'")
    assert measured == [0, 1, 2]
    for kind in ("turns", "rounds", "trees"):
        assert rows(parted, kind) == rows(whole, kind)
    assert {row["prompt_id"] for row in rows(whole, "trees")} == {"1", "2"}, "run.trees=2"
    assert len(json.loads((parted / "run.json").read_text())["resumed"]) == 1


def test_a_difference_beyond_rounding_is_a_fault(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("dataset.limit=1").fault is None
    wrong_tokens(monkeypatch)
    outcome = run("dataset.limit=1", "run.fresh=true")
    row = next(row for row in rows(folder(outcome), "turns") if row["method"] == "eagle3_small")
    assert outcome.fault == (
        "2 answers differ from AR beyond float32 rounding (margin bound 0.01); the first: method eagle3_small,"
        f" prompt gsm8k-0000, turn 0, position {row['diverged_at']}, token {row['method_token']}"
        f" for AR's {row['ar_token']}, margin {row['margin']:.3g}"
    )
    assert [entry["lossless"] for entry in outcome.result["methods"].values()] == [True, False, False]


def test_a_difference_within_rounding_is_reported_and_no_fault(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_tokens(monkeypatch)
    monkeypatch.setitem(job.NOISE_MARGIN, "float32", 1e6)
    outcome = run("dataset.limit=1")
    assert outcome.fault is None
    assert outcome.result["methods"]["talon_small"]["lossless"] is False


def test_an_answer_that_ends_early_is_a_fault_in_every_dtype(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Bench._answer

    def shorter(self: Bench, drafter, *rest: object):
        row, entries = real(self, drafter, *rest)
        if drafter.budget == 1 or len(entries) < 2:
            return row, entries
        ids = row["output_ids"][: -entries[-1][1].emitted]
        return {**row, "output_ids": ids, "new_tokens": len(ids), "rounds": len(entries) - 1}, entries[:-1]

    monkeypatch.setattr(Bench, "_answer", shorter)
    outcome = run("dataset.limit=1")
    assert "2 answers differ from AR beyond float32 rounding" in outcome.fault
    assert "margin inf" in outcome.fault


def test_failed_answers_are_a_fault(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, draft: object) -> None:
        raise RuntimeError("no tree")

    monkeypatch.setattr("talon_bench.policies.talon.Talon.grow", broken)
    outcome = run("dataset=mt_bench", "dataset.limit=2")
    assert outcome.fault == "4 answers failed; the first: method talon_small, prompt 1: RuntimeError: no tree"
    assert outcome.result["methods"]["talon_small"]["turns"] == 0
    assert outcome.result["methods"]["eagle3_small"]["turns"] == 4


def test_a_run_in_which_nothing_fits_the_window_is_reported(
    run: Callable, tmp_path: Path, toy_folders: ToyFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    target = toy_folders.target("llama", max_position_embeddings=30)
    outcome = run(f"target.path='{target}'", "dataset.limit=2")
    assert outcome.fault is None
    assert {row["status"] for row in rows(folder(outcome), "turns")} == {"skipped"}
    assert outcome.result["methods"]["ar"]["turns"] == 0
    assert outcome.result["methods"]["talon_small"]["mat"] is None
    assert "ar: 0 failed, 2 skipped" in " ".join(capsys.readouterr().out.split())


def test_a_head_of_the_other_kind_is_refused(run: Callable, toy_folders: ToyFolders, tmp_path: Path) -> None:
    eagle = toy_folders.head("llama", "eagle")
    with pytest.raises(
        UsageError, match=r"head.eagle3 holds a head of kind eagle2 \(local-eagle3\); give it as head.e"
    ):
        run(f"head.eagle3.path='{eagle}'")
    eagle3 = toy_folders.head("llama", "eagle3")
    with pytest.raises(UsageError, match=r"head\.eagle2 holds a head of kind eagle3"):
        run(f"head.eagle2.path='{eagle3}'", "method=eagle2")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("damage", ["cut", "empty", "no config", "other shapes"])
def test_a_damaged_target_is_refused_in_one_line(run: Callable, tmp_path: Path, damage: str) -> None:
    target = write_toy_target(tmp_path / "target", "llama")
    weights, config = target / "model.safetensors", target / "config.json"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "empty":
        weights.write_bytes(b"")
    elif damage == "no config":
        config.unlink()
    else:
        config.write_text(config.read_text().replace(f'"vocab_size": {VOCAB_SIZE}', '"vocab_size": 50'))
    with pytest.raises(UsageError, match="target toy: target cannot be loaded") as error:
        run(f"target.path='{target}'")
    assert "\n" not in str(error.value)


def test_a_target_that_lacks_a_tensor_is_refused(run: Callable, tmp_path: Path) -> None:
    target = write_toy_target(tmp_path / "target", "llama")
    tensors = load_file(target / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"target toy: target lacks model\.layers\.3\.mlp\.up_proj\.weight; fetch"):
        run(f"target.path='{target}'")


def test_bfloat16_runs_on_the_fused_engine_and_says_so(run: Callable) -> None:
    outcome = run("target.dtype=auto", "dataset.limit=1", "lineup=lossless")
    checkpoint = info(outcome)["checkpoint"]
    assert (checkpoint["dtype"], checkpoint["engine"]) == ("bfloat16", "fused")
    assert outcome.fault is None
    outcome = run("target.dtype=bfloat16", "target.fuse=false", "dataset.limit=1", "lineup=baseline")
    assert info(outcome)["checkpoint"]["engine"] == "stock"
