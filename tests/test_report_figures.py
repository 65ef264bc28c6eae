"""Figures draw the numbers of the records; the command line and the notebook put everything together."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from run_records import AR_MS, FAST_MS, write_run
from talon_bench.errors import UsageError
from talon_bench.report import figures
from talon_bench.report.load import load_run

ROOT = Path(__file__).parents[1]
COST = {
    "target": "smollm2-135m",
    "dtype": "float32",
    "threads": 2,
    "context": 256,
    "rows": [
        {"tokens": 1, "ms_median": 10.0, "ms_p10": 9.0, "ms_p90": 12.0},
        {"tokens": 60, "ms_median": 25.0, "ms_p10": 24.0, "ms_p90": 27.0},
    ],
}


def test_speedup_figure_draws_the_table(tmp_path: Path) -> None:
    plot = figures.speedup([load_run(write_run(tmp_path))])
    (axis,) = plot.figure.axes
    points = [line.get_ydata()[0] for line in axis.lines if len(line.get_ydata()) == 1]
    assert points == pytest.approx([80 / 82, 1.6, 2.0, 4.0])
    assert any(np.array_equal(line.get_ydata(), [1, 1]) for line in axis.lines)
    assert "n = 6 prompts" in plot.caption


def test_funnel_figure_draws_both_rates(tmp_path: Path) -> None:
    """Every tree has two layers and every path ends at depth 1, 24 verifications a method."""
    run = load_run(write_run(tmp_path, {"ar": AR_MS * 2, "talon": FAST_MS * 2}))
    plot = figures.funnel(run)
    joint, conditional = ([line.get_ydata().tolist() for line in axis.lines] for axis in plot.figure.axes)
    assert joint == [[1.0, 0.0]]
    assert conditional == [[1.0, 0.0]]
    assert "TALON_x 50% & more 48" in plot.caption
    few = figures.funnel(load_run(write_run(tmp_path / "few", {"ar": [80.0], "talon": [40.0]})))
    assert [line.get_ydata().tolist() for line in few.figure.axes[1].lines] == [[]]


def test_round_time_figure_stacks_to_the_round(tmp_path: Path) -> None:
    """TALON's round: 10 ms, a quarter draft, 5 % other; AR's 10 ms without draft."""
    plot = figures.round_time(load_run(write_run(tmp_path, {"ar": AR_MS, "talon": FAST_MS})))
    widths = np.array([bar.get_width() for bar in plot.figure.axes[0].patches]).reshape(3, 2)
    assert widths.T.tolist() == [pytest.approx([0, 9.5, 0.5]), pytest.approx([2.5, 7.0, 0.5])]
    assert "25.0/70.0/5.0 %" in plot.caption


def test_verify_cost_figure(tmp_path: Path) -> None:
    file = tmp_path / "verify_cost.json"
    file.write_text(json.dumps(COST), encoding="utf-8")
    plot = figures.verify_cost([file, COST | {"context": 512}])
    assert [list(line.get_ydata()) for line in plot.figure.axes[0].lines] == [[10.0, 25.0]] * 2
    assert "context 512: 10.00 ms for 1, 25.00 ms for 60 (2.50 times)." in plot.caption
    with pytest.raises(UsageError, match="lacks 'ms_p90'"):
        figures.verify_cost([COST | {"rows": [{"tokens": 1, "ms_median": 1.0, "ms_p10": 1.0}]}])


def test_figures_of_a_run_with_ar_alone(tmp_path: Path) -> None:
    plots = figures.all_plots([load_run(write_run(tmp_path, {"ar": AR_MS}))])
    assert [plot.stem for plot in plots] == ["speedup", "funnel", "round_time"]
    assert all(plot.png().startswith(b"\x89PNG") for plot in plots)


@pytest.fixture
def table2(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`analysis.table2`, which lives beside the package and not in it."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("analysis.table2")


def test_table2_writes_everything_and_prints_the_markdown(
    table2: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    write_run(runs / "a", {"ar": AR_MS, "talon": FAST_MS})
    (runs / "verify_cost.json").write_text(json.dumps(COST), encoding="utf-8")
    assert table2.main([str(runs), "--out", str(out)]) == 0
    assert capsys.readouterr().out == (out / "table2.md").read_text(encoding="utf-8")
    drawn = {
        f"{stem}.{kind}"
        for stem in ("speedup", "funnel", "round_time", "verify_cost")
        for kind in ("png", "pdf", "txt")
    }
    tabled = {"table2.csv", "table2.md", "table2.tex", "table2_detail.csv", "table2_detail.md"}
    assert {file.name for file in out.iterdir()} == drawn | tabled
    first = {file.name: file.read_bytes() for file in out.iterdir()}
    assert table2.main([str(runs), "--out", str(out)]) == 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} == first


def test_table2_without_runs_is_one_line_and_status_2(
    table2: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table2.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a", {"ar": AR_MS, "talon": FAST_MS})
    monkeypatch.setenv("TALON_BENCH_RESULTS", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / "01_main_results.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert any(cell.get("outputs") for cell in notebook.cells), "opens with the reference results"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("**2.00 [2.00, 2.00]**" in output.get("data", {}).get("text/markdown", "") for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
