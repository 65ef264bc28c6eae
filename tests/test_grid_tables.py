"""What comes out beside the grid's tables: the checkpoints behind them, the settings that a search found, figures by name."""

from __future__ import annotations

import hashlib
import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from analysis import checkpoints, reproduce, table2, tune
from run_records import AR_MS, FAST_MS, SLOW_MS, write_run
from talon_bench.report.load import load_runs

SHA = {name: name * 32 for name in ("aa", "bb", "cc")}
TALON = {"policy": "talon", "head": "eagle3"}
EAGLE3 = {"policy": "eagle", "head": "eagle3"}
EAGLE2 = {"policy": "eagle", "head": "eagle2"}
SETTINGS = {"talon": TALON, "eagle3": EAGLE3, "eagle2": EAGLE2, "lookup": {"policy": "lookup"}}
MS = {"ar": AR_MS, "lookup": SLOW_MS, "eagle2": SLOW_MS, "eagle3": SLOW_MS, "talon": FAST_MS}


def write(folder: Path, *, revision: str = "c0ffee", **others: object) -> Path:
    """A run on a target of the hub with a head of the hub and a shipped one."""
    heads = {
        "eagle2": {"name": "h2", "sha256": SHA["bb"], "origins": {}},
        "eagle3": {"name": "h3", "sha256": SHA["aa"], "origins": {"checkpoint": f"org/head3@{revision}"}},
    }
    config = {
        "target": {"licence": "llama3.1"},
        "head": {"eagle2": {"shipped": "h2", "hub": None, "licence": "mit"}, "eagle3": {"hub": "org/head3"}},
    }
    checkpoint = {"source": "org/target", "revision": "beef", "sha256": SHA["cc"]}
    info = {"heads": heads, "config": config, "checkpoint": checkpoint} | others
    return write_run(folder, MS, target="llama-3.1-8b", settings=SETTINGS, **info)


def test_every_checkpoint_of_the_runs_stands_once_with_its_methods(tmp_path: Path) -> None:
    write(tmp_path / "a", dataset="gsm8k")
    write(tmp_path / "b", dataset="mt_bench")
    table = checkpoints.checkpoint_table(load_runs(tmp_path))
    assert table.values.tolist() == [
        ["llama-3.1-8b", "target", "AR, prompt lookup", "org/target", "beef", SHA["cc"], "llama3.1"],
        ["llama-3.1-8b", "EAGLE-1/2 head", "EAGLE-2", "heads/h2", None, SHA["bb"], "mit"],
        ["llama-3.1-8b", "EAGLE-3 head", "EAGLE-3, TALON", "org/head3", "c0ffee", SHA["aa"], None],
    ]


def test_a_checkpoint_that_changed_between_runs_stands_twice(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", revision="deadbeef")
    table = checkpoints.checkpoint_table(load_runs(tmp_path))
    assert table.loc[table["part"] == "EAGLE-3 head", "revision"].tolist() == ["c0ffee", "deadbeef"]


def test_a_large_target_is_known_by_the_sums_of_its_files(tmp_path: Path) -> None:
    files = {"model-00002-of-00002.safetensors": SHA["bb"], "model-00001-of-00002.safetensors": SHA["aa"]}
    checkpoint = {"source": "org/target", "revision": "beef", "sha256": None, "files": files}
    write(tmp_path / "a", checkpoint=checkpoint)
    lines = f"{SHA['aa']}  model-00001-of-00002.safetensors\n{SHA['bb']}  model-00002-of-00002.safetensors\n"
    table = checkpoints.checkpoint_table(load_runs(tmp_path))
    assert table.loc[0, "sha256"] == hashlib.sha256(lines.encode()).hexdigest()


def test_records_from_before_sources_were_written_still_name_them(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config={"head": {"eagle3": {"hub": "org/head3"}}})
    write_run(tmp_path / "b", target="other")
    table = checkpoints.checkpoint_table(load_runs(tmp_path))
    heads = table[table["part"] == "EAGLE-3 head"]
    assert heads["checkpoint"].tolist() == ["local folder", "org/head3"]
    assert heads["target"].tolist() == ["other", "smollm2-135m"]


def test_the_list_comes_in_three_forms_beside_the_main_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table2, "all_plots", lambda runs, roots: [])
    write(tmp_path / "runs" / "a", revision="0123456789abcdef0123")
    assert table2.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    text = {ending: (tmp_path / "out" / f"checkpoints.{ending}").read_text() for ending in ("csv", "md", "tex")}
    read = pd.read_csv(StringIO(text["csv"]), comment="#")
    assert read["revision"].tolist()[2] == "0123456789abcdef0123"
    assert read["sha256"].tolist()[0] == SHA["cc"]
    assert "| 0123456789ab | aaaaaaaaaaaa |" in " ".join(text["md"].split())
    assert "nan" not in text["md"]
    assert "n/a" not in text["md"]
    assert r"\label{tab:checkpoints}" in text["tex"]
    for form in text.values():
        assert "the commit that the hub gave" in form
    capsys.readouterr()
    assert checkpoints.main([str(tmp_path / "runs"), "--out", str(tmp_path / "own")]) == 0
    assert capsys.readouterr().out == text["md"]
    assert checkpoints.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: no run.json at or below")


def search(folder: Path, dataset: str, depth: int, ms: dict[int, float], **others: object) -> Path:
    """A run that sweeps the budget of EAGLE-3 at one depth; `ms` holds the decode time per prompt by budget."""
    names = {f"eagle3_tuned[budget={budget}]": budget for budget in ms}
    settings = {name: {**EAGLE3, "budget": budget, "depth": depth, "top_k": 10} for name, budget in names.items()}
    times = {"ar": AR_MS} | {name: [ms[budget]] * 6 for name, budget in names.items()}
    return write_run(folder, times, dataset=dataset, settings=settings, **others)


def test_the_search_names_the_settings_with_the_highest_mean_speedup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search(tmp_path / "a", "gsm8k", 3, {16: 40.0, 32: 50.0})
    search(tmp_path / "b", "gsm8k", 5, {16: 20.0, 32: 32.0})
    search(tmp_path / "c", "mt_bench", 3, {16: 40.0, 32: 50.0})
    search(tmp_path / "d", "mt_bench", 5, {16: 160.0, 32: 32.0})
    table = tune.searched(load_runs(tmp_path), "eagle3_tuned")
    rows = table[["depth", "budget", "data sets", "speedup", "lowest"]].values.tolist()
    assert rows == [
        [5, 32, 2, 2.5, 2.5],
        [5, 16, 2, 2.25, 0.5],
        [3, 16, 2, 2.0, 2.0],
        [3, 32, 2, 1.6, 1.6],
    ]
    assert tune.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split("|")[1].strip() in ("32", "5")
    overrides = ["method=eagle3_tuned", "method.budget=32", "method.depth=5", "method.top_k=10"]
    found = json.loads(out.splitlines()[-1])
    assert found["target"] == "smollm2-135m"
    assert sorted(found["overrides"]) == sorted(overrides)


def test_settings_that_missed_a_data_set_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(tmp_path / "a", "gsm8k", 3, {16: 40.0})
    search(tmp_path / "b", "gsm8k", 5, {16: 10.0})
    search(tmp_path / "c", "mt_bench", 3, {16: 40.0})
    assert tune.searched(load_runs(tmp_path), "eagle3_tuned")["depth"].tolist() == [3]
    assert tune.main([str(tmp_path), "--method", "talon"]) == 2
    assert capsys.readouterr().err.startswith("error: no run sweeps talon; run +experiment=tune_eagle3 first")
    search(tmp_path / "d", "gsm8k", 3, {16: 40.0}, target="other")
    assert tune.main([str(tmp_path)]) == 2
    assert "runs of other, smollm2-135m together" in capsys.readouterr().err
    search(tmp_path / "alone" / "x", "gsm8k", 3, {16: 40.0})
    search(tmp_path / "alone" / "y", "mt_bench", 5, {16: 40.0})
    assert tune.main([str(tmp_path / "alone")]) == 2
    assert "no settings of eagle3_tuned were measured on every data set" in capsys.readouterr().err


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What `reproduce` starts and then calls, instead of a measurement."""
    calls: list[list[str]] = []

    def run(command: list[str], check: bool) -> SimpleNamespace:
        calls.append(command[1:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(reproduce.subprocess, "run", run)
    for name in ("table2", "tables", "figures"):
        module = getattr(reproduce, name)
        monkeypatch.setattr(module, "main", lambda argv, name=name: calls.append([name, *argv]) or 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    return calls


def test_a_figure_is_reproduced_by_its_name(started: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["figure12"]) == 0
    size = ["dataset.limit=3", "decode.max_new_tokens=64"]
    where = ["results/local/figure12/runs", "--out", "results/local/figure12"]
    assert started == [
        ["-m", "talon_bench", "+experiment=figure12_embedded", f"run.root={where[0]}", *size],
        ["tables", *where],
        ["figures", *where],
    ]
    line = capsys.readouterr().out.splitlines()[0]
    # AR and six budgets, once for TALON and once for EAGLE-3; three conversations of two turns.
    assert line.startswith("figure12_embedded: smollm2-135m, 14 methods, 3 of 12 prompts of mt_bench (samples)")
    assert line.endswith(f"at most {6 * 14 * 64 * 0.055 / 60:.0f} min on two cores")


def test_full_lifts_the_limit_of_an_experiment(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Test GPU")
    assert reproduce.main(["table1", "--full"]) == 0
    assert started[0][3:] == ["run.root=results/local/table1/runs", "dataset.limit=null"]
    assert reproduce.main(["figure3", "--full", "target=llama31_8b"]) == 0
    assert started[2][3:] == ["run.root=results/local/figure3/runs", "target=llama31_8b"]
    assert "figure3: llama31_8b x mt_bench, prompts: hub, on Test GPU" in capsys.readouterr().out
