"""`talon-bench gpu-check` on toys: the program as documented, what it keeps when something ends it, and its refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from conftest import ToyFolders
from talon_bench.compose import compose_config
from talon_bench.doctor.finding import ok, warning
from talon_bench.gpu_check import check as check_module
from talon_bench.gpu_check import device as device_module
from talon_bench.gpu_check.check import STAGES, Check, Stage
from talon_bench.gpu_check.context import Context
from talon_bench.gpu_check.record import CheckRecord
from talon_bench.gpu_check.scale import FULL, TINY
from toy_runs import CommandLine, assert_refused, toy_overrides

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def done(toy_folders: ToyFolders, tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess, Path]:
    """The documented command on a CPU, with toys for the embedded default, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("check")
    overrides = [*toy_overrides(toy_folders, folder), "launch.device=cpu", "gpu_check.out=made/check.json"]
    command = [sys.executable, "-m", "talon_bench", "gpu-check", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True), folder


@pytest.fixture
def content(done) -> dict:
    return json.loads((done[1] / "made/check.json").read_text())


def test_the_documented_command_runs_every_stage_on_a_cpu(done, content) -> None:
    process, folder = done
    assert process.returncode == 0, process.stdout + process.stderr
    assert list(content["stages"]) == content["order"] == [stage.name for stage in STAGES]
    assert {name: stage["status"] for name, stage in content["stages"].items()} == dict.fromkeys(
        content["order"], "done"
    )
    last = json.loads(process.stdout.splitlines()[-1])
    assert last["out"] == "made/check.json"
    assert last["verdict"] == content["verdict"] in ("ok", "warning")
    assert str(folder) not in (folder / "made/check.json").read_text()


def test_a_cpus_numbers_are_called_so_from_the_first_line_on(done, content) -> None:
    lines = done[0].stdout.splitlines()
    assert lines[0] == "note: no GPU: nothing is recorded, and no number of this check is a GPU's"
    assert lines[1] == "note: tiny shapes in the place of llama-3.1-8b's"
    assert (content["gpu"], content["scale"], content["stages"]["machine"]["results"]["gpu"]) == (None, "tiny", None)


def test_every_finding_is_printed_and_kept(done, content) -> None:
    findings = [finding for stage in content["stages"].values() for finding in stage["findings"]]
    printed = [line for line in done[0].stdout.splitlines() if line.startswith(("ok ", "warning ", "fault "))]
    assert len(findings) == len(printed) > 15
    for finding, line in zip(findings, printed, strict=True):
        assert line.startswith(f"{finding['level']:8}{finding['subject']}: {finding['found']}")


def test_the_results_hold_what_the_tables_need(content) -> None:
    results = {name: stage["results"] for name, stage in content["stages"].items()}
    assert results["machine"]["provenance"]["read_gb_s"] > 0
    for pair in ("recorded and called", "device and CPU"):
        compared = results["passes"][f"float32, {pair}"]
        assert compared["equal"] == compared["compared"] == 69, "on a CPU both are the same passes"
    assert results["passes"]["float32, static and eager"]["equal"] < 69
    assert [row["equal"] for row in results["acceptance"]["answers"]] == [True] * 3
    assert all(row["mat"] > 1.5 for row in results["acceptance"]["answers"])
    for dtype in ("float32", "bfloat16"):
        methods = results[f"lossless {dtype}"]["methods"]
        assert list(methods) == ["ar", "eagle3_small", "talon_small", "ar_eager"]
        assert results[f"lossless {dtype}"]["checkpoint"]["dtype"] == dtype
        assert all(row["tokens_per_second"] > 0 for row in methods.values())
    assert all(row["equal_prompts"] == 1 for row in results["lossless float32"]["methods"].values())
    assert results["shape"]["facts"]["architecture"]["vocab_size"] == 512
    assert [row["nodes"] for row in results["verify"]["passes"]] == [1, 8, 16, 32, 64, 96, 128, 1, 64]
    assert all(0 < row["ms_low"] <= row["ms"] <= row["ms_high"] for row in results["verify"]["passes"])
    assert {row["kind"] for row in results["draft"]["passes"]} == {"catch-up", "expansion"}
    ideas = results["ideas"]
    assert [row["attention"] for row in ideas["attention"]["rows"]] == ["plain"] * 2
    assert set(ideas["attention"]["missing"]) == {"memory-efficient", "cuDNN"}
    assert ideas["projection"]["rows"][0]["error"] < 0.01


def test_led_rounds_accept_and_others_do_not(content) -> None:
    rounds = content["stages"]["rounds"]["results"]
    plain, led = (rounds[name]["methods"] for name in ("as they come", "led"))
    assert list(plain) == list(led) == ["ar", "ar_again", "ar_eager", "eagle3", "eagle3_talon_paper", "talon"]
    assert (led["eagle3"]["draft_passes"], led["eagle3_talon_paper"]["draft_passes"]) == (8, 9)
    for method in ("eagle3", "talon"):
        assert plain[method]["mat"] < 1.5
        assert led[method]["mat"] > 3
    turns = pd.DataFrame(rounds["led"]["turns"])
    assert (turns.groupby("method").size() == TINY.prompts).all()
    assert turns["decode_ms"].to_numpy() == pytest.approx(turns[["draft_ms", "verify_ms", "other_ms"]].sum(axis=1))
    phases = {(row["method"], row["phase"]) for row in rounds["led"]["roofline"]}
    assert {("AR", "verify"), ("TALON (60 nodes)", "draft"), ("TALON (60 nodes)", "decode")} <= phases


def test_its_tables_can_be_made_at_once(done, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "analysis.gpu_check", str(done[1] / "made/check.json"), "--out", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    stems = ("gpu_lossless", "gpu_verify", "gpu_draft", "gpu_ideas", "gpu_rounds", "gpu_projected")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{s}.{e}" for s in stems for e in ("csv", "md", "tex")
    )
    for stem in stems:
        text = (tmp_path / f"{stem}.md").read_text()
        assert "CPU, not a GPU, tiny shapes" in text
        assert "Not a GPU: only the form of this table is of use." in text
        assert f"## {stem}" in made.stdout


@pytest.fixture
def cli(toy_folders, tmp_path, monkeypatch, capfd) -> CommandLine:
    base = [
        "gpu-check",
        *toy_overrides(toy_folders, tmp_path),
        "launch.device=cpu",
        f"gpu_check.out={tmp_path / 'c.json'}",
    ]
    return CommandLine(monkeypatch, capfd, base)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu_check.seconds=3"], "gpu_check.seconds is 3; give 10 or more"),
        (["gpu_check.scale=huge"], "gpu_check.scale is huge; expected one of auto, full, tiny"),
        (["gpu_check.shap=x"], "unknown option gpu_check.shap; expected one of gpu_check.out"),
        (["gpu_check.shape"], "gpu_check.shape has no value; write gpu_check.shape=VALUE"),
        (["gpu_check.shape=no_such"], "no_such"),
        (["gpu_check.shape=smollm2", "-m"], "gpu-check tries one device; leave -m out"),
        (["--fast"], "gpu-check has no switch --fast; expected -m, overrides, or gpu_check.out=VALUE"),
        (["gpu_check.shape=llama2_7b"], "gpu_check.shape=llama2_7b has no target.architecture or no EAGLE-3 head"),
        (["launch.device=tpu"], "launch.device is tpu"),
    ],
)
def test_a_bad_request_is_one_line(cli: CommandLine, arguments: list[str], message: str, tmp_path: Path) -> None:
    assert_refused(cli(*arguments), message)
    assert not (tmp_path / "c.json").exists()


def test_a_file_that_cannot_be_written_is_known_at_once(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(cli(f"gpu_check.out={tmp_path / 'file' / 'c.json'}"), "file")


def test_help_names_every_option(cli: CommandLine) -> None:
    result = cli("--help")
    assert result.status == 0
    assert "talon-bench gpu-check [-m] [OVERRIDES] [OPTIONS]" in result.out
    for option in ("out=results/local/gpu_check.json", "seconds=480", "scale=auto", "shape=llama31_8b"):
        assert f"gpu_check.{option}" in result.out


def test_what_was_measured_outlives_an_interrupt(cli: CommandLine, tmp_path: Path, monkeypatch) -> None:
    def interrupted(context: Context) -> list:
        context.keep("half", [1.5])
        raise KeyboardInterrupt

    stages = (Stage("first", lambda context: [ok("a", "b")], 0, 9), Stage("second", interrupted, 0, 9))
    monkeypatch.setattr(check_module, "STAGES", stages)
    result = cli()
    assert (result.status, result.notes) == (130, ["interrupted"])
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["verdict"] == "interrupted"
    assert [stage["status"] for stage in content["stages"].values()] == ["done", "interrupted"]
    assert content["stages"]["second"]["results"] == {"half": [1.5]}


def run_stages(monkeypatch, tmp_path: Path, *stages: Stage, seconds: float = 60) -> tuple[Check, dict, list[str]]:
    monkeypatch.setattr(check_module, "STAGES", stages)
    record, lines = CheckRecord(tmp_path / "check.json"), []
    config = compose_config()
    check = Check(Context(config, config, TINY, CPU), record, seconds, lines.append)
    check.run()
    return check, json.loads(record.path.read_text()), lines


def test_a_stage_that_fails_costs_no_other(monkeypatch, tmp_path: Path) -> None:
    def out_of_memory(context: Context) -> list:
        context.keep("rows", [1, 2])
        raise torch.OutOfMemoryError("CUDA out of memory in\n/home/somebody/model.py")

    check, content, lines = run_stages(
        monkeypatch,
        tmp_path,
        Stage("one", out_of_memory, 0, 9),
        Stage("two", lambda context: [warning("load", "high")], 0, 9),
        Stage("three", lambda context: [ok("never", "run")], 0, 9, needs="one"),
        Stage("four", lambda context: [ok("runs", "still")], 0, 9, needs="two"),
    )
    assert check.verdict == content["verdict"] == "fault"
    one = content["stages"]["one"]
    assert (one["status"], one["results"]) == ("failed", {"rows": [1, 2]})
    assert one["findings"][0]["found"] == "CUDA out of memory in .../model.py"
    assert one["places"][-1].startswith("test_gpu_check.py:")
    assert content["stages"]["three"]["reason"] == "stage one did not end well"
    assert lines == [
        "fault   one: failed: CUDA out of memory in .../model.py",
        "warning two: load: high",
        "left out  three: stage one did not end well",
        "ok      four: runs: still",
    ]


def test_what_does_not_fit_into_the_time_is_left_out_and_named(monkeypatch, tmp_path: Path) -> None:
    left = []

    def look(context: Context) -> list:
        left.append(context.seconds_left())
        return [ok("time", "looked at")]

    check, content, lines = run_stages(
        monkeypatch, tmp_path, Stage("short", look, 5, 60), Stage("long", look, 9e3, 1e4), Stage("open", look, 0, 9e4),
        seconds=3600,
    )  # fmt: skip
    assert check.verdict == "ok"
    assert [stage["status"] for stage in content["stages"].values()] == ["done", "left out", "done"]
    assert 0 < left[0] <= 60, "a stage ends after its own time"
    assert 60 < left[1] <= 3600, "or with the whole"
    assert "it needs 9000; give gpu_check.seconds more" in lines[1]


def test_a_gpu_that_is_lost_ends_the_check(monkeypatch, tmp_path: Path) -> None:
    def illegal(context: Context) -> list:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(check_module, "is_lost", lambda device: True)
    _, content, _ = run_stages(
        monkeypatch, tmp_path, Stage("one", illegal, 0, 9), Stage("two", lambda context: [], 0, 9)
    )
    assert content["stages"]["two"]["reason"] == "the GPU answers nothing any more"
    assert "memory" not in content["stages"]["one"]


def test_the_order_is_the_order_of_importance_and_fits_the_time() -> None:
    names = [stage.name for stage in STAGES]
    assert names.index("passes") < names.index("lossless float32") < names.index("rounds")
    assert names[-1] == "lossless bfloat16"
    assert sum(stage.least for stage in STAGES) < 240
    assert all(stage.least <= stage.most for stage in STAGES)
    assert (FULL.prompt_tokens + FULL.new_tokens) < 2048, "an EAGLE-3 head's window"


def test_a_record_never_takes_the_place_of_another(tmp_path: Path) -> None:
    paths = [CheckRecord(tmp_path / "new" / "gpu.check.json").path.name for _ in range(3)]
    assert paths == ["gpu.check.json", "gpu.check-2.json", "gpu.check-3.json"]


def test_a_record_is_json_after_every_result(tmp_path: Path) -> None:
    record = CheckRecord(tmp_path / "c.json", gpu=None)
    record.begin("stage")
    value = {"nan": float("nan"), 3: (torch.tensor(2), float("inf")), "row": [{"x": None, "y": "z"}]}
    record.keep("stage", "value", value)
    content = json.loads(record.path.read_text())
    expected = {"nan": None, "3": [2, None], "row": [{"x": None, "y": "z"}]}
    assert content["stages"]["stage"] == {"status": "running", "findings": [], "results": {"value": expected}}
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_the_drivers_tool_is_read_or_done_without(monkeypatch) -> None:
    answers = {
        "returncode": 0,
        "stdout": "570.86, P0, 1980 MHz, 2619 MHz, 1980 MHz, 2619 MHz, 31, 80 W, 700 W, Enabled\n",
    }

    def run(command: list[str], **_: object):
        answers["command"] = command
        return type("Done", (), answers)

    monkeypatch.setattr(subprocess, "run", run)
    found = device_module._nvidia_smi("0a1b")
    assert (found["driver_version"], found["clocks.sm"], found["power.limit"]) == ("570.86", "1980 MHz", "700 W")
    assert answers["command"][1] == "--id=GPU-0a1b"
    answers["returncode"] = 9
    assert device_module._nvidia_smi(None) is None
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert device_module._nvidia_smi(None) is None
