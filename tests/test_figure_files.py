"""The commands that write figures, and the notebooks that show them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from run_records import AR_MS, FAST_MS, write_run
from talon_bench.report import figures
from talon_bench.report.load import load_run
from test_report_figures import COST

ROOT = Path(__file__).parents[1]
STEMS = ["speedup", "efficiency", "accepted_length", "tree_depth", "tree_width", "funnel", "heatmap", "round_time"]
Main = Callable[[list[str]], int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Main]:
    """`main` of a module of `analysis`, which lives beside the package and not in it."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"analysis.{name}").main


def sweep(folder: Path) -> Path:
    """A run folder in which TALON's settings are those of a sweep over alpha."""
    ms = {"ar": AR_MS, "talon[alpha=0.1]": FAST_MS, "talon[alpha=0.3]": [20.0, 30.0] * 3}
    settings = {
        name: {"policy": "talon", "head": "eagle3", "alpha": float(name[-4:-1]), "label": f"talon, alpha {name[-4:-1]}"}
        for name in list(ms)[1:]
    }
    return write_run(folder, ms, settings=settings)


def test_figures_writes_everything_and_names_it(
    command: Callable[[str], Main], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    write_run(runs / "a", {"ar": AR_MS, "talon": FAST_MS})
    (runs / "verify_cost.json").write_text(json.dumps(COST), encoding="utf-8")
    assert command("figures")([str(runs / "a"), str(runs), "--out", str(out)]) == 0, "a run found twice counts once"
    assert capsys.readouterr().out.split() == [*STEMS, "verify_cost"]
    written = {file.name: file.read_bytes() for file in out.iterdir()}
    assert set(written) == {f"{stem}.{kind}" for stem in [*STEMS, "verify_cost"] for kind in ("png", "pdf", "txt")}
    for plot in (figures.heatmap(load_run(runs / "a")), figures.verify_cost([COST])):
        for file in plot.save(tmp_path / "again"):
            assert file.read_bytes() == written[file.name], "equal data, equal files"


def test_figures_without_runs_is_one_line_and_status_2(
    command: Callable[[str], Main], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("figures")([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_table2_writes_tables_beside_the_figures(
    command: Callable[[str], Main], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", {"ar": AR_MS, "talon": FAST_MS})
    main = command("table2")
    plot = figures.round_time(load_run(tmp_path / "a"))
    monkeypatch.setattr(importlib.import_module("analysis.table2"), "all_plots", lambda runs, folder: [plot])
    assert main([str(tmp_path / "a"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == (tmp_path / "out" / "table2.md").read_text(encoding="utf-8")
    tables = {"table2.csv", "table2.md", "table2.tex", "table2_detail.csv", "table2_detail.md"}
    assert {file.name for file in (tmp_path / "out").iterdir()} >= tables | {"round_time.png"}


@pytest.mark.parametrize(
    ("name", "pictures", "text"),
    [
        ("01_main_results", 3, "**2.00 [2.00, 2.00]**"),
        ("02_acceptance_funnel", 2, "Acceptance funnel of smollm2-135m / gsm8k"),
        ("03_alpha_budget", 4, "**alpha**"),
        ("04_depth_and_variance", 3, "Depth of the trees that TALON built"),
    ],
)
def test_notebook_runs(name: str, pictures: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a", {"ar": AR_MS, "talon": FAST_MS})
    sweep(tmp_path / "sweeps" / "alpha")
    monkeypatch.setenv("TALON_BENCH_RESULTS", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert any(cell.get("outputs") for cell in notebook.cells), "opens with outputs"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any(text in output.get("data", {}).get("text/markdown", "") for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures


def test_the_notebook_of_sweeps_says_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALON_BENCH_RESULTS", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / "03_alpha_budget.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "no sweep there yet" in printed


@pytest.mark.parametrize("name", ["tables", "figures", "table2", "compare_paper", "report"])
def test_an_output_that_cannot_be_written_is_one_line_and_status_2(
    name: str, command: Callable[[str], Main], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands where a folder should, or a folder where a file should."""
    write_run(tmp_path / "run", {"ar": AR_MS})
    out = tmp_path / "taken"
    if name in ("compare_paper", "report"):
        out.mkdir()
    else:
        out.touch()
    assert command(name)([str(tmp_path / "run"), "--out", str(out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {out} cannot be ")
    assert "give another" in line


def test_a_broken_verify_cost_file_is_one_line_and_status_2(
    command: Callable[[str], Main], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", {"ar": AR_MS})
    (tmp_path / "verify_cost.json").write_text(json.dumps(COST)[:-9], encoding="utf-8")
    assert command("figures")([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'verify_cost.json'} is no JSON")
    assert not (tmp_path / "out").exists()
