"""The main and the detail table: their numbers, the mark of the best, and the three written forms."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pandas as pd
import pytest

from run_records import AR_MS, FAST_MS, LABELS, MS, write_run
from talon_bench.report import tables
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.notes import notes


def test_main_table_numbers(tmp_path: Path) -> None:
    """AR 80 ms, AR again 82 on average, EAGLE-3 50, TALON 40, Medusa 20."""
    frame = tables.main_table([load_run(write_run(tmp_path))])
    labels = ["AR", "AR again", "EAGLE-3 (budget 60)", "TALON_x 50% & more", "Medusa †"]
    assert list(frame.index) == [("smollm2-135m", label) for label in labels]
    cells = frame["gsm8k"].droplevel("target")
    assert cells["speedup"].tolist() == pytest.approx([1.0, 80 / 82, 1.6, 2.0, 4.0])
    assert cells["mat"].tolist() == [1, 1, 2, 2, 2]
    assert cells["eta"].tolist() == [0, 0, 2, 2, 2]
    assert cells.loc["TALON_x 50% & more", ["ci_low", "ci_high"]].tolist() == pytest.approx([2.0, 2.0])
    assert cells["best"].tolist() == [False, False, False, True, False]


def test_no_best_without_separation(tmp_path: Path) -> None:
    """EAGLE-3's total is larger, but prompt by prompt it wins as often as it loses."""
    ms = {"ar": AR_MS, "eagle3": [35.0, 46.0] * 3, "talon": FAST_MS}
    run = load_run(write_run(tmp_path, ms))
    assert max(run.summaries.values(), key=lambda row: row.speedup).method == "talon"
    assert tables.best_method(run) is None


def test_ar_can_be_the_best_and_one_prompt_has_none(tmp_path: Path) -> None:
    slow = {"ar": AR_MS, "ar_again": [78.0, 83.0] * 3, "talon": [160.0] * 6}
    assert tables.best_method(load_run(write_run(tmp_path / "slow", slow))) == "ar"
    single = load_run(write_run(tmp_path / "one", {"ar": [80.0], "talon": [40.0]}))
    assert tables.best_method(single) is None
    assert tables.best_method(load_run(write_run(tmp_path / "alone", {"ar": AR_MS}))) is None
    assert "2.00 [n/a]" in tables.to_markdown(tables.main_table([single]))


def test_runs_fill_columns_and_leave_unknown_cells_open(tmp_path: Path) -> None:
    write_run(tmp_path / "a", dataset="gsm8k")
    write_run(tmp_path / "b", {"ar": AR_MS, "talon": FAST_MS}, dataset="alpaca")
    frame = tables.main_table(load_runs(tmp_path))
    assert list(frame.columns.unique(0)) == ["gsm8k", "alpaca"]
    row = frame.loc[("smollm2-135m", "EAGLE-3 (budget 60)")]
    assert row["gsm8k", "speedup"] == pytest.approx(1.6)
    assert pd.isna(row["alpaca", "speedup"])
    assert not row["alpaca", "best"]
    assert "| n/a" in tables.to_markdown(frame)


def test_runs_of_one_cell_never_overwrite_each_other(tmp_path: Path) -> None:
    for name, temperature in (("a", 0.0), ("b", 1.0), ("c", 1.0)):
        write_run(tmp_path / name, temperature=temperature)
    heads = ["smollm2-135m (T = 0)", "smollm2-135m (T = 1) [b]", "smollm2-135m (T = 1) [c]"]
    assert tables.row_groups(load_runs(tmp_path)) == heads
    assert len(tables.main_table(load_runs(tmp_path))) == 3 * len(MS)


def test_methods_with_one_label_are_told_apart(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    run.info["methods"]["eagle3"]["label"] = LABELS["talon"]
    assert run.labels["talon"] == "TALON_x 50% & more [talon]"
    assert len(tables.main_table([run])) == len(MS)


def test_detail_table(tmp_path: Path) -> None:
    row = tables.detail_table([load_run(write_run(tmp_path, differs=2))]).set_index("method").loc["TALON_x 50% & more"]
    assert (row["prompts"], row["turns"], row["failed"], row["skipped"]) == (6, 6, 0, 0)
    assert (row["MAT"], row["eta"], row["tokens/s"], row["speedup"]) == (2.0, 2.0, pytest.approx(200.0), 2.0)
    gamma = (10 / 8) / (76 / 8)
    assert row["gamma"] == pytest.approx(gamma)
    assert row["predicted"] == pytest.approx(2 / (1 + 2 * gamma))
    assert row["measured/predicted"] == pytest.approx(1 + 2 * gamma)
    assert row[["draft share", "verify share", "other share"]].tolist() == pytest.approx([0.25, 0.7, 0.05])
    assert (row["equal to AR"], row["worst margin"]) == ("5 of 6", 0.0125)
    assert (row["budget"], row["settings"], row["dtype"], row["temperature"]) == (
        60,
        "alpha=0.03",
        "float32",
        0.0,
    )
    assert (row["head"], row["head sha256"]) == ("toy-eagle3", "ab" * 6)


def test_csv_reads_back(tmp_path: Path) -> None:
    runs = [load_run(write_run(tmp_path))]
    text = tables.to_csv(tables.main_table(runs), notes(runs))
    back = pd.read_csv(io.StringIO(text), comment="#")
    assert list(back.columns[:4]) == ["target", "method", "gsm8k speedup", "gsm8k ci_low"]
    assert back["gsm8k speedup"].tolist() == pytest.approx([1.0, 80 / 82, 1.6, 2.0, 4.0])
    assert text.count("\n# ") == len(notes(runs))
    detail = pd.read_csv(io.StringIO(tables.to_csv(tables.detail_table(runs), notes(runs))), comment="#")
    assert detail["equal to AR"].tolist() == ["6 of 6"] * 5


def test_markdown_marks_the_best_and_escapes_pipes(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    run.info["methods"]["talon"]["label"] = "a|b"
    lines = tables.to_markdown(tables.main_table([run]), ["one note"]).splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[:7]]
    assert cells[0] == ["target", "method", "gsm8k speedup [95 % CI]", "gsm8k MAT", "gsm8k η"]
    assert cells[2] == ["smollm2-135m", "AR", "1.00", "1.00", "0.00"]
    assert cells[5] == ["", r"a\|b", "**2.00 [2.00, 2.00]**", "2.00", "2.00"]
    assert cells[6][1:3] == ["Medusa †", "4.00 [4.00, 4.00]"]
    assert lines[7:] == ["", "- one note"]


def latex_columns(row: str) -> int:
    """Columns a LaTeX row fills, spanning cells included."""
    spans = [int(width) for width in re.findall(r"\\multicolumn\{(\d+)\}", row)]
    return len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans)


def test_latex_structure(tmp_path: Path) -> None:
    write_run(tmp_path / "a", target="smollm2_x")
    write_run(tmp_path / "b", target="qwen3-8b", dataset="mt_bench")
    runs = load_runs(tmp_path)
    text = tables.to_latex(tables.main_table(runs), notes(runs), caption="Speed & more")
    lines = text.splitlines()
    plain = re.sub(r"\\[{}\\]", "", text)
    assert plain.count("{") == plain.count("}")
    assert [line for line in lines if line.startswith(("\\begin", "\\end"))] == [
        r"\begin{table}[t]",
        r"\begin{tabular}{llrrrrrr}",
        r"\end{tabular}",
        r"\begin{minipage}{\linewidth}\scriptsize",
        r"\end{minipage}",
        r"\end{table}",
    ]
    rules = [line for line in lines if re.match(r"\\(top|mid|bottom|cmid)rule", line)]
    assert rules == [
        "\\toprule",
        r"\cmidrule(lr){3-5} \cmidrule(lr){6-8}",
        "\\midrule",
        "\\midrule",
        "\\bottomrule",
    ]
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 2 + 2 * len(MS)
    assert {latex_columns(row) for row in rows} == {8}
    assert r"\textbf{2.00 [2.00, 2.00]}" in text
    assert r"TALON\_x 50\% \& more" in text
    assert r"Medusa $^\dagger$" in text
    assert r"\caption{Speed \& more}" in text
    assert re.search(r"(?<!\\)[%#]", text) is None
    assert re.search(r"(?<!\\)_", text) is None
    assert text.isascii()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 5% #1 $x", r"a\_b \& 5\% \#1 \$x"),
        ("{~^\\}", r"\{\textasciitilde{}\textasciicircum{}\textbackslash{}\}"),
        ("η < 3 †", r"$\eta$ $<$ 3 $^\dagger$"),
    ],
)
def test_latex_escape(text: str, escaped: str) -> None:
    assert tables.latex_escape(text) == escaped
