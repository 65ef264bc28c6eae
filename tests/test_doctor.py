"""`talon-bench doctor` on toys: a good head passes, each kind of wrong one is found, and every bad request is one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ToyFolders
from talon_bench.doctor.prompts import PROMPTS
from talon_bench.loading import load_target
from talon_bench.paths import cache_dir
from talon_bench.plan.checkpoints import local_folder
from talon_bench.schema import LaunchConfig, TargetConfig
from toy_runs import CommandLine, Result, assert_refused, toy_overrides
from toys import write_toy_head, write_toy_target
from trained_head import write_trained_head

ASKED, TOKENS = 4, 40
LAYERS = [2, 4, 5]
"""EAGLE-3's usual feature layers of a toy target."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a toy target whose layers change the state, so that it matters which of them a head reads."""
    folder = write_toy_target(tmp_path_factory.mktemp("deep"), "llama")
    tensors = load_file(folder / "model.safetensors")
    larger = {name: 6 * tensor for name, tensor in tensors.items() if "o_proj" in name or "down_proj" in name}
    save_file({**tensors, **larger}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def trained(deep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an EAGLE-3 head that knows what the toy target answers."""
    config = TargetConfig(name="toy", path=str(deep), dtype="float32")
    target = load_target(config, LaunchConfig(device="cpu", threads=1)).target
    return write_trained_head(tmp_path_factory.mktemp("trained"), deep, target, prompts=ASKED, tokens=TOKENS)


@pytest.fixture
def cli(
    toy_folders: ToyFolders,
    deep: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> CommandLine:
    base = [
        "doctor",
        *toy_overrides(toy_folders, tmp_path, target=deep),
        f"head.eagle3.path='{trained}'",
        "head.eagle2.path=null",
        "launch.device=cpu",
        f"doctor.prompts={ASKED}",
        f"doctor.tokens={TOKENS}",
    ]
    return CommandLine(monkeypatch, capfd, base)


def levels(result: Result) -> dict[str, list[str]]:
    """Levels of the findings by subject."""
    found: dict[str, list[str]] = {}
    for finding in result.last["findings"]:
        found.setdefault(finding["subject"], []).append(finding["level"])
    return found


def lines(result: Result, subject: str) -> list[str]:
    """The printed lines on one subject."""
    return [line for line in result.out.splitlines() if line[8:].startswith(f"{subject}: ")]


def test_a_good_pair_passes(cli: CommandLine) -> None:
    result = cli()
    assert (result.status, result.notes) == (0, []), result.out
    found = levels(result)
    assert "fault" not in {level for named in found.values() for level in named}
    assert list(found) == [
        *("python", "torch", "transformers", "safetensors", "accelerate"),
        *("target checkpoint", "head.eagle3 checkpoint", "device", "load", "line-up", "memory", "disk", "target"),
        *("end of answer", "begin of text", "chat template", "special tokens", "thinking"),
        *("head.eagle3", "probe", "head.eagle3.rope_theta", "head.eagle3.feature_layers"),
        *("head.eagle3 first position", "head.eagle3 MAT", "method eagle3_small", "method talon_small"),
    ]
    assert all(found[name] == ["ok"] for name in ("head.eagle3.feature_layers", "head.eagle3 MAT"))
    last = result.last
    assert (last["command"], last["target"], last["fit_to_publish"]) == ("doctor", "toy", True)
    head = last["heads"]["eagle3"]
    assert head["feature_layers"] == LAYERS
    assert head["mat"] > 1.3
    assert 0.3 < head["first_position"] <= 1
    assert [entry["equal"] for entry in last["methods"].values()] == [None, ASKED, ASKED]
    printed = result.out.splitlines()
    assert len(printed) == len(last["findings"]) + 1
    assert {line[:8].strip() for line in printed[:-1]} <= {"ok", "warning"}


def test_both_kinds_of_head_are_examined(cli: CommandLine, toy_folders: ToyFolders) -> None:
    result = cli(f"head.eagle2.path='{toy_folders.head('llama', 'eagle')}'", "lineup=lossless", "doctor.prompts=2")
    found = levels(result)
    assert "head.eagle2.rope_theta" in found
    assert "head.eagle2.feature_layers" not in found, "EAGLE-2 heads read the final states"
    methods = result.last["methods"]
    assert len(methods) == 9
    assert {name: entry["equal"] for name, entry in methods.items() if name != "ar"} == dict.fromkeys(
        [name for name in methods if name != "ar"], 2
    )


def test_wrong_feature_layers_are_found(cli: CommandLine) -> None:
    result = cli("head.eagle3.feature_layers=[0,2,3]")
    assert (result.status, levels(result)["head.eagle3.feature_layers"]) == (2, ["fault"]), result.out
    (line,) = lines(result, "head.eagle3.feature_layers")
    assert "set head.eagle3.feature_layers=[2,4,5]" in line


def test_a_wrong_rotary_base_is_found(cli: CommandLine) -> None:
    result = cli("head.eagle3.rope_theta=2")
    assert levels(result)["head.eagle3.rope_theta"][0] in ("warning", "fault"), result.out
    (line,) = lines(result, "head.eagle3.rope_theta")
    assert "2 guesses" in line
    assert "set head.eagle3.rope_theta=10000" in line


def test_shuffled_weights_are_not_fit_to_publish(cli: CommandLine, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shuffled"
    folder.mkdir()
    (folder / "config.json").write_bytes((trained / "config.json").read_bytes())
    tensors = load_file(trained / "model.safetensors")
    order = torch.randperm(tensors["lm_head.weight"].shape[0], generator=torch.Generator().manual_seed(0))
    save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"][order]}, folder / "model.safetensors")
    result = cli(f"head.eagle3.path='{folder}'")
    assert (result.status, result.last["fit_to_publish"]) == (2, False)
    assert levels(result)["head.eagle3 MAT"] == ["fault"]
    assert levels(result)["head.eagle3 first position"] == ["warning"]
    assert result.last["heads"]["eagle3"]["mat"] < 1.3
    assert "are not fit to publish: use the head of this target" in lines(result, "head.eagle3 MAT")[0]
    assert [entry["equal"] for entry in result.last["methods"].values()] == [None, ASKED, ASKED], "still lossless"


def test_a_head_of_another_target_of_the_same_shape_is_found(cli: CommandLine, tmp_path: Path) -> None:
    other = write_toy_target(tmp_path / "other", "llama", seed=5)
    head = write_toy_head(tmp_path / "head", "eagle3", other)
    result = cli(f"head.eagle3.path='{head}'")
    assert result.status == 2
    assert levels(result)["head.eagle3 MAT"] == ["fault"]


def test_a_head_of_another_shape_is_found_and_the_rest_goes_on(cli: CommandLine, toy_folders: ToyFolders) -> None:
    result = cli(f"head.eagle3.path='{toy_folders.head('qwen2', 'eagle3')}'")
    assert result.status == 2
    found = levels(result)
    assert found["head.eagle3"] == ["fault"]
    assert "made for a target with hidden size 48" in lines(result, "head.eagle3")[0]
    assert found["probe"] == ["ok"], "AR still answers"
    assert list(result.last["methods"]) == ["ar"]


def test_the_floor_can_be_raised(cli: CommandLine) -> None:
    result = cli("doctor.min_mat=4.9")
    assert result.status == 2
    assert "expected at least 4.9" in lines(result, "head.eagle3 MAT")[0]


def test_a_target_that_cannot_be_loaded_ends_the_examination(cli: CommandLine, tmp_path: Path) -> None:
    folder = write_toy_target(tmp_path / "cut", "llama")
    (folder / "model.safetensors").write_bytes(b"\0" * 20)
    result = cli(f"target.path='{folder}'")
    assert result.status == 2
    assert "Traceback" not in result.err
    assert "method talon_small" not in levels(result)


def test_the_verdict_is_kept_without_a_path(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    result = cli(f"doctor.out={file}", "doctor.prompts=1", "target.path=/nonexistent/toy")
    kept = json.loads(file.read_text())
    assert kept == result.last
    assert kept["verdict"] == "fault"
    assert "/nonexistent" not in file.read_text()


BAD = {
    "mistyped option": (["doctor.min_matt=2"], "unknown option doctor.min_matt; expected one of doctor.min_mat"),
    "no number": (["doctor.tokens=many"], "Value 'many' of type 'str' could not be converted to Integer"),
    "floor below 1": (["doctor.min_mat=0.5"], "doctor.min_mat is 0.5; give 1 or more"),
    "floor nan": (["doctor.min_mat=nan"], "doctor.min_mat is nan; give 1 or more"),
    "too many prompts": (["doctor.prompts=99"], f"doctor.prompts is 99; give 1 to {len(PROMPTS)}"),
    "one token": (["doctor.tokens=1"], "doctor.tokens is 1; give 2 or more"),
    "no folder for the verdict": (["doctor.out=/nonexistent/doctor.json"], "there is no such folder"),
    "several jobs": (["-m"], "doctor examines one target and its heads; leave -m out"),
    "a list": (["target.dtype=float32,bfloat16"], "target.dtype=float32,bfloat16"),
    "mistyped key": (["target.dtpe=float32"], "Could not override 'target.dtpe'"),
    "unknown target": (["target=nope"], "Could not find 'target/nope'"),
    "switch": (["--config-dir=x"], "doctor has no switch --config-dir; expected -m, overrides"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_one_clear_line(cli: CommandLine, case: str) -> None:
    arguments, message = BAD[case]
    assert_refused(cli(*arguments), message)


def test_help_lists_every_option(cli: CommandLine) -> None:
    result = cli("--help")
    assert result.status == 0
    for option in ("doctor.min_mat=1.3", f"doctor.prompts={len(PROMPTS)}", "doctor.tokens=48", "doctor.out=null"):
        assert option in result.out


def test_the_program_refuses_a_mistyped_option_before_it_loads_anything(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "talon_bench", "doctor", "doctor.floor=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: unknown option doctor.floor; expected one of doctor.min_mat")


def embedded(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    if local_folder(TargetConfig(name="smollm2-135m", embedded=True)) is None:
        pytest.skip(f"the embedded target is not converted in {cache_dir().name}")
    few = ["doctor.prompts=2", "doctor.tokens=16", "lineup=baseline", "method=talon_small", "launch.threads=1"]
    command = [
        sys.executable,
        "-m",
        "talon_bench",
        "doctor",
        *few,
        "launch.device=cpu",
        "head.eagle2.shipped=null",
        *arguments,
    ]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=180)


def test_the_embedded_default_and_its_head_with_wrong_layers(tmp_path: Path) -> None:
    done = embedded("head.eagle3.feature_layers=[0,1,5]", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    by_subject = {finding["subject"]: finding for finding in json.loads(done.stdout.splitlines()[-1])["findings"]}
    assert by_subject["head.eagle3.feature_layers"]["level"] == "fault"
    assert "feature_layers=[2,15,27]" in by_subject["head.eagle3.feature_layers"]["fix"]
    assert by_subject["method talon_small"]["level"] == "ok"
    assert list(tmp_path.iterdir()) == []
