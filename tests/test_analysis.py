"""The analysis commands on toys and hand-made records, and the verbs of the Makefile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from analysis import baseline, reproduce, table2, verify_cost
from conftest import ToyFolders
from run_records import write_run
from toy_runs import QUESTIONS, toy_overrides

ROOT = Path(__file__).resolve().parents[1]
VERBS = {
    *("help", "setup", "test", "lint", "smoke", "reproduce-table1", "reproduce-table2", "reproduce-table3"),
    *("sweep", "tables", "compare-paper", "figures", "report", "notebooks", "verify-cost"),
    *("score", "checkpoints", "plan", "doctor", "gpu-check", "heads", "data", "data-check", "clean"),
}


@pytest.fixture
def toys(toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 1.0)
    monkeypatch.chdir(tmp_path)
    return toy_overrides(toy_folders, tmp_path)


def last_json(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_baseline_writes_what_transformers_generate_writes(
    toys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert baseline.main(toys) == 0
    result = last_json(capsys)
    assert (result["prompts"], result["equal"]) == (len(QUESTIONS), len(QUESTIONS))
    assert (result["target"], result["dataset"], result["dtype"], result["threads"]) == ("toy", "gsm8k", "float32", 1)
    speed = result["tokens_per_second"]
    assert result["ratio"] == pytest.approx(speed["ar"] / speed["generate"], abs=0.01)


def test_the_baseline_stops_where_transformers_stops(
    toys: list[str], toy_folders: ToyFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the ids of all capital letters as stop ids, answers end at the same token on both sides."""
    target = Path(shutil.copytree(toy_folders.target("llama"), tmp_path / "target"))
    for name in ("config.json", "generation_config.json"):
        content = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps({**content, "eos_token_id": list(range(39, 65))}))
    assert baseline.main([*toys, f"target.path='{target}'", "decode.max_new_tokens=40"]) == 0
    assert last_json(capsys)["equal"] == len(QUESTIONS)


def test_a_baseline_that_differs_in_float32_is_an_error_status(
    toys: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = baseline.decode

    def wrong(target, drafter, ids, answer, **options):
        yield from real(target, drafter, ids, answer, **options)
        answer.ids[-1] += 1

    monkeypatch.setattr(baseline, "decode", wrong)
    assert baseline.main([*toys, "dataset.limit=2"]) == 1
    assert last_json(capsys)["equal"] == 0
    assert baseline.main([*toys, "dataset.limit=1", "target.dtype=bfloat16"]) == 0


@pytest.mark.parametrize("command", [baseline, verify_cost])
def test_commands_say_a_users_error_in_one_line(command, toys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for overrides, message in (
        (["dataset.limit=0"], "error: dataset.limit=0"),
        (["target=nope"], "error: In 'config': Could not find 'target/nope'"),
        (["target.path=/nonexistent"], "error: toy: there is no folder"),
    ):
        assert command.main([*toys, *overrides]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(message)
        assert captured.err.count("\n") == 1


def test_verify_cost_measures_every_tree_size_behind_the_context(
    toys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify_cost, "TOKENS", (1, 4, 9))
    seen = []
    real = verify_cost.Target.verify

    def verify(self, tokens, depths, visible, eager=False):
        seen.append((self.cache.length, len(tokens), None if visible is None else int(visible.sum())))
        return real(self, tokens, depths, visible, eager)

    monkeypatch.setattr(verify_cost.Target, "verify", verify)
    out = tmp_path / "deep" / "cost.json"
    assert verify_cost.main([*toys, "--out", str(out), "--context", "30", "--repeats", "3"]) == 0
    assert seen[-12:] == [(30, 1, None), (30, 4, 10), (30, 9, 45)] * 4
    result = json.loads(out.read_text())
    assert (result["target"], result["context"], result["dtype"]) == ("toy", 30, "float32")
    assert [row["tokens"] for row in result["rows"]] == [1, 4, 9]
    for row in result["rows"]:
        assert 0 < row["ms_p10"] <= row["ms_median"] <= row["ms_p90"]
    assert result["provenance"]["threads"] == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("1.00 x one")


def test_table2_writes_every_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "a")
    assert table2.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"table2.csv", "table2.md", "table2.tex", "table2_detail.csv", "table2_detail.md"} <= written
    assert [name for name in written if name.endswith(".pdf")]
    assert capsys.readouterr().out == (tmp_path / "out" / "table2.md").read_text(encoding="utf-8")
    assert table2.main([str(tmp_path / "nothing"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: no run.json at or below")


class Launched:
    """Notes what `reproduce` starts instead of starting it: runs, which end with `status`, and tables."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.tables: list[list[str]] = []
        self.status = self.table_status = 0

    def run(self, command: list[str], check: bool) -> SimpleNamespace:
        assert check is False
        self.commands.append(command)
        return SimpleNamespace(returncode=self.status)

    def table(self, arguments: list[str]) -> int:
        self.tables.append(arguments)
        return self.table_status


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launched:
    launch = Launched()
    monkeypatch.setattr(reproduce.subprocess, "run", launch.run)
    monkeypatch.setattr(reproduce.table2, "main", launch.table)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    return launch


@pytest.mark.parametrize("table", ["table1", "table2", "table3"])
def test_reproduce_says_what_will_run_and_runs_it(
    launched: Launched, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce.main([table]) == 0
    assert launched.commands == [
        [
            *(sys.executable, "-m", "talon_bench"),
            *(f"+experiment={table}_embedded", f"run.root=results/local/{table}/runs"),
            *("dataset.limit=3", "decode.max_new_tokens=64"),
        ]
    ]
    methods = {"table1": 5, "table2": 9, "table3": 5}[table]
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(
        f"{table}_embedded: smollm2-135m, {methods} methods, 3 of 12 prompts of mt_bench (samples), "
    )
    # Six turns of MT-Bench, three prompts each of the five others; 55 ms a token.
    assert line.endswith(
        f"up to 64 new tokens an answer; at most {21 * methods * 64 * 0.055 / 60:.0f} min on two cores"
    )
    assert launched.tables == [[f"results/local/{table}/runs", "--out", f"results/local/{table}"]]


def test_reproduce_in_full_on_own_data(
    launched: Launched, toys: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(data / "gsm8k", data / "humaneval")
    (data / "humaneval" / "HumanEval.jsonl").write_text(
        json.dumps(dict.fromkeys(("task_id", "prompt", "entry_point", "canonical_solution", "test"), "x"))
    )
    own = ["dataset=mt_bench,gsm8k,humaneval", "decode.seed=3"]
    assert reproduce.main(["table2", "--data", str(data), "--full", *own]) == 0
    assert launched.commands[0][5:] == [f"data.root={data}", "data.source=local", *own]
    line = capsys.readouterr().out.splitlines()[0]
    assert "3 of 3 prompts of mt_bench (local), 4 of 4 prompts of gsm8k (local), 1 of 1 prompts of humaneval" in line
    assert "up to 128 new tokens an answer" in line


@pytest.mark.parametrize(
    ("status", "table_status", "expected", "tables"),
    [(2, 0, 2, 0), (130, 0, 130, 0), (1, 0, 1, 1), (0, 0, 0, 1), (0, 2, 2, 1), (1, 2, 2, 1)],
)
def test_reproduce_passes_on_how_the_run_ended(
    launched: Launched, status: int, table_status: int, expected: int, tables: int
) -> None:
    """A run with a fault still gets its tables, which name the fault; one that was refused or interrupted does not."""
    launched.status, launched.table_status = status, table_status
    assert reproduce.main(["table1"]) == expected
    assert len(launched.tables) == tables


def test_reproduce_refuses_bad_overrides_before_it_starts(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce.main(["table2", "method.alpha=7"]) == 2
    assert capsys.readouterr().err == "error: method talon: alpha is 7.0; expected a value in (0, 1]\n"
    assert launched.commands == []


def test_reproduce_takes_the_grid_of_real_checkpoints_on_a_gpu(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Test GPU")
    assert reproduce.main(["table3"]) == 0
    assert launched.commands[0][3:] == ["+experiment=table3", "run.root=results/local/table3/runs"]
    expected = (
        "table3: vicuna_13b, dsl_8b, llama31_8b, qwen3_8b, qwen3_32b x mt_bench, humaneval, gsm8k, alpaca, qa, cnn_dm,"
        " prompts: hub, on Test GPU"
    )
    assert capsys.readouterr().out.splitlines()[0] == expected


def make(*arguments: str) -> subprocess.CompletedProcess:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    return subprocess.run(["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True)


def plain(done: subprocess.CompletedProcess) -> str:
    return " ".join(done.stdout.split())


def test_make_help_lists_every_verb() -> None:
    done = make("help")
    assert done.returncode == 0
    assert set(re.findall(r"^  make (\S+)", done.stdout, flags=re.MULTILINE)) == VERBS | {"reproduce-figure%"}
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(phony[1].replace("\\", "").split()) == VERBS
    for variable in ("DATA=FOLDER", "FULL=1", "ARGS="):
        assert variable in done.stdout
    assert make().stdout == done.stdout


@pytest.mark.parametrize("verb", sorted(VERBS | {"reproduce-figure12"}))
def test_make_shows_the_plain_command_of_every_verb(verb: str) -> None:
    done = make("-n", verb, "DATA=somewhere", "RUNS=runs", "OUT=out", "ARGS=decode.seed=7")
    assert done.returncode == 0, done.stderr
    commands = {
        "smoke": "-m talon_bench data.root=somewhere +experiment=smoke",
        "sweep": "-m talon_bench data.root=somewhere +sweep=alpha lineup=baseline",
        "reproduce-table1": "-m analysis.reproduce --data somewhere table1 decode.seed=7",
        "reproduce-table2": "-m analysis.reproduce --data somewhere table2 decode.seed=7",
        "reproduce-table3": "-m analysis.reproduce --data somewhere table3 decode.seed=7",
        "reproduce-figure12": "-m analysis.reproduce --data somewhere figure12 decode.seed=7",
        "checkpoints": "-m analysis.checkpoints runs",
        "plan": "talon-bench plan decode.seed=7",
        "doctor": "talon-bench doctor decode.seed=7",
        "gpu-check": "talon-bench gpu-check decode.seed=7",
        "heads": "-m talon_bench.training training=smollm2 work=out data.root=somewhere decode.seed=7",
        "verify-cost": "-m analysis.verify_cost --out results/local/verify_cost.json decode.seed=7",
        "tables": "-m analysis.tables runs --out results/local/tables",
        "compare-paper": "-m analysis.compare_paper runs",
        "figures": "-m analysis.figures runs --out results/local/figures",
        "report": "-m analysis.report runs --out",
        "score": "-m analysis.score runs --data somewhere decode.seed=7",
        "data": "-m data_prep fetch --source local --root somewhere --out out",
        "data-check": "-m data_prep check somewhere",
        "test": "-m pytest",
        "lint": "ruff format --check .",
    }
    assert commands.get(verb, "") in plain(done)


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        ("data-check", "set DATA to the folder of original files"),
        ("score", "set RUNS to the folder of one or more runs"),
        ("data", "set OUT to the folder to write to"),
        ("heads", "set DATA to the folder of original files"),
    ],
)
def test_make_names_what_is_missing(verb: str, missing: str) -> None:
    done = make("-n", verb)
    assert done.returncode != 0
    assert missing in done.stderr


def test_make_fills_in_what_is_left_out() -> None:
    for verb in ("tables", "compare-paper", "figures", "report"):
        assert "results/reference" in plain(make("-n", verb))
    assert "analysis.reproduce table1" in plain(make("-n", "reproduce-table1"))
    assert "analysis.reproduce --full table1" in plain(make("-n", "reproduce-table1", "FULL=1"))
    assert "+sweep=budget lineup=baseline" in plain(make("-n", "sweep", "SWEEP=budget"))
