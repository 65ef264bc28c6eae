"""Tables as CSV, Markdown and LaTeX: what the forms keep, mark and escape, and that LaTeX compiles."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from run_records import AR_MS, FAST_MS, MS, write_run
from talon_bench.report import tables
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.notes import notes
from talon_bench.report.render import latex_document, latex_escape, to_csv, to_latex, to_markdown


def test_csv_reads_back(tmp_path: Path) -> None:
    runs = [load_run(write_run(tmp_path))]
    text = to_csv(tables.main_table(runs), notes(runs))
    back = pd.read_csv(io.StringIO(text), comment="#")
    assert list(back.columns[:4]) == ["target", "method", "gsm8k speedup", "gsm8k ci_low"]
    assert back["gsm8k speedup"].tolist() == pytest.approx([1.0, 80 / 82, 1.6, 2.0, 4.0])
    assert text.count("\n# ") == len(notes(runs))
    detail = pd.read_csv(io.StringIO(to_csv(tables.detail_table(runs), notes(runs))), comment="#")
    assert detail["equal to AR"].tolist() == ["6 of 6"] * 5


def test_markdown_marks_the_best_and_escapes_pipes(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    run.info["methods"]["talon"]["label"] = "a|b"
    lines = to_markdown(tables.main_table([run]), ["one note"]).splitlines()
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
    text = to_latex(tables.main_table(runs), notes(runs), caption="Speed & more")
    lines = text.splitlines()
    plain = re.sub(r"\\[{}\\]", "", text)
    assert plain.count("{") == plain.count("}")
    assert [line for line in lines if line.startswith(("\\begin", "\\end"))] == [
        r"\begin{table}[t]",
        r"\begin{tabular}{llrrrrrrrrr}",
        r"\end{tabular}",
        r"\begin{minipage}{\linewidth}\scriptsize",
        r"\end{minipage}",
        r"\end{table}",
    ]
    rules = [line for line in lines if re.match(r"\\(top|mid|bottom|cmid)rule", line)]
    assert rules == [
        "\\toprule",
        r"\cmidrule(lr){3-5} \cmidrule(lr){6-8} \cmidrule(lr){9-11}",
        "\\midrule",
        "\\midrule",
        "\\bottomrule",
    ]
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 2 + 2 * len(MS)
    assert {latex_columns(row) for row in rows} == {11}
    assert r"$\mathbf{2.00}_{2.00}^{2.00}$ & 2.00 & 2.00" in text
    assert "Subscript, superscript: 95" in text
    assert r"TALON\_x 50\% \& more" in text
    assert r"Medusa $^\dagger$" in text
    assert r"\caption{Speed \& more}" in text
    assert re.search(r"(?<!\\)[%#](?!$)", text, flags=re.MULTILINE) is None
    assert re.search(r"(?<![\\\d}])_", text) is None, "an underscore stands behind an estimate or a backslash"
    assert text.isascii()


def test_latex_cells(tmp_path: Path) -> None:
    """A single prompt has no interval; a cell must not be read as an option of the row before it."""
    single = load_run(write_run(tmp_path, {"ar": [80.0], "talon": [40.0]}))
    assert "& $2.00$ & 2.00 & 2.00" in to_latex(tables.main_table([single]))
    flat = to_latex(pd.DataFrame({"method": ["[a]", "*b"], "MAT [95 % CI]": ["1.00 [0.90, 1.10]", "n/a"]}))
    assert r"{}[a] & $1.00_{0.90}^{1.10}$ \\" in flat
    assert "{}*b & n/a" in flat
    assert r"method & MAT \\" in flat
    assert r"\begin{tabular}{lr}" in flat


def compile_latex(folder: Path, file: str) -> None:
    """Compiles `file` with the compiler at hand; skips where there is none."""
    commands = {
        "pdflatex": ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"],
        "latexmk": ["latexmk", "-pdf", "-interaction=nonstopmode"],
        "tectonic": ["tectonic", "--print"],
    }
    command = next((command for name, command in commands.items() if shutil.which(name)), None)
    if command is None:
        pytest.skip(f"none of {', '.join(commands)} is installed")
    done = subprocess.run([*command, file], cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / file).with_suffix(".pdf").stat().st_size > 0
    assert "Overfull" not in done.stdout


def test_latex_compiles(tmp_path: Path) -> None:
    """Main table, ablation and efficiency of odd names: accents, signs that no font has, six data sets wide."""
    odd = {"talon": {"label": "TALON [\u03b1 = 0.03] é \u4e2d {}_^~|<>"}}
    for dataset in ("alpaca", "gsm8k", "humaneval", "mt_bench", "qa", "cnn_dm"):
        write_run(tmp_path / "runs" / dataset, dataset=dataset, differs=1, settings=odd)
    sweep = {"ar": AR_MS, "talon[alpha=0.1]": FAST_MS, "talon[alpha=0.5]": [50.0] * 6}
    write_run(
        tmp_path / "runs" / "sweep", sweep, settings={name: {"alpha": float(name[-4:-1])} for name in list(sweep)[1:]}
    )
    paths = tables.write_tables(load_runs(tmp_path / "runs"), tmp_path / "out")
    assert {"table2.tex", "ablation_alpha.tex", "efficiency.tex", "tables.tex"} <= {path.name for path in paths}
    compile_latex(tmp_path / "out", "tables.tex")


def test_latex_document_sets_every_file() -> None:
    text = latex_document(["a.tex", "b.tex"])
    assert re.findall(r"\\input\{(.*)\}", text) == ["a.tex", "b.tex"]
    assert r"\usepackage{booktabs,graphicx}" in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 5% #1 $x", r"a\_b \& 5\% \#1 \$x"),
        ("{~^\\}", r"\{\textasciitilde{}\textasciicircum{}\textbackslash{}\}"),
        ("η < 3 †", r"$\eta$ $<$ 3 $^\dagger$"),
        ("é \u4e2d", "é U+4E2D"),
    ],
)
def test_latex_escape(text: str, escaped: str) -> None:
    assert latex_escape(text) == escaped
