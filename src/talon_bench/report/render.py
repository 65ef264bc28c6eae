"""Tables as CSV, Markdown and LaTeX, and how a number is printed everywhere.

A table with two-level columns (data set, one of `cells.CELLS`) shrinks to speedups, MAT and η per data set for
readers; any other table is printed as it is. In CSV everything stays, and the notes are comment lines:
`pandas.read_csv(path, comment="#")` reads the table back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pandas as pd

from talon_bench.report.cells import BASELINE, SPEEDUPS, speedup_columns
from talon_bench.report.notes import INTERVAL_MARK, LOSSY_MARK

_LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    "η": r"$\eta$",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
    "\N{GREEK SMALL LETTER GAMMA}": r"$\gamma$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{EN DASH}": "--",
    LOSSY_MARK: r"$^\dagger$",
}
_INTERVAL = re.compile(r"(?P<value>-?[\d.]+) \[(?P<low>-?[\d.]+|n/a)(?:, (?P<high>-?[\d.]+))?\]")
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_TEXT_COLUMNS = ("target", "dataset", "method")


def numbers_and_text(
    stem: str, table: pd.DataFrame, text: pd.DataFrame, lines: Sequence[str], caption: str
) -> dict[str, str]:
    """Content by file name: a table as numbers for programs, as text for readers."""
    return {
        f"{stem}.csv": to_csv(table, lines),
        f"{stem}.md": to_markdown(text, lines),
        f"{stem}.tex": to_latex(text, lines, caption, f"tab:{stem}"),
    }


def to_csv(frame: pd.DataFrame, lines: Sequence[str] = ()) -> str:
    """Numbers as they are, two-level columns joined by a space, notes as comment lines."""
    flat = frame.copy()
    if flat.columns.nlevels > 1:
        flat.columns = [" ".join(column) for column in flat.columns]
    keep_index = flat.index.nlevels > 1
    return flat.to_csv(index=keep_index, lineterminator="\n") + "".join(f"# {line}\n" for line in lines)


def to_markdown(frame: pd.DataFrame, lines: Sequence[str] = ()) -> str:
    """A pipe table, best cells bold, then the notes as a list."""
    text = _display(frame, bold="**{}**".format, escape=lambda cell: cell.replace("|", "\\|"))
    if text.columns.nlevels > 1:
        text.columns = [" ".join(column).strip() for column in text.columns]
    table = text.to_markdown(index=False, disable_numparse=True)
    return table + "\n" + ("\n" if lines else "") + "".join(f"- {line}\n" for line in lines)


def to_latex(frame: pd.DataFrame, lines: Sequence[str] = (), caption: str = "", label: str = "tab:speedup") -> str:
    r"""A `table` environment that needs `booktabs` and `graphicx`; it shrinks to the line if it is wider.

    Intervals stand as sub- and superscript, which halves the width of a table; notes in small print below.
    """
    text = _display(frame, bold=_latex_bold, escape=_latex_cell)
    top = ["\\begin{table}[t]", "\\centering", "\\footnotesize", "\\setlength{\\tabcolsep}{3pt}"]
    top.append("\\renewcommand{\\arraystretch}{1.2}")
    title = [f"\\caption{{{latex_escape(caption)}}}", f"\\label{{{label}}}"] if caption else []
    small = ["\\par\\smallskip", "\\begin{minipage}{\\linewidth}\\scriptsize"]
    lines = [line.replace(INTERVAL_MARK, "Subscript, superscript") for line in lines]
    prints = [*small, *(f"{latex_escape(line)}\\par" for line in lines), "\\end{minipage}"] if lines else []
    return "\n".join([*top, *title, _FIT, *_tabular(text), "}", *prints, "\\end{table}", ""])


def latex_document(files: Sequence[str]) -> str:
    """A document that sets the named files of `to_latex` one after another."""
    packages = "\\usepackage[a4paper,landscape,margin=15mm]{geometry}\n\\usepackage{booktabs,graphicx}"
    body = "\n\\clearpage\n".join(f"\\input{{{file}}}" for file in files)
    return f"\\documentclass{{article}}\n{packages}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"


def latex_escape(text: str) -> str:
    """Text as LaTeX sets it literally; the report's own symbols become mathematics, signs that fonts lack their number."""
    return "".join(_LATEX.get(char) or (char if ord(char) < 0x180 else f"U+{ord(char):04X}") for char in text)


def number(value: float, digits: int = 2) -> str:
    """A number as printed everywhere; what is unknown is n/a."""
    return "n/a" if pd.isna(value) else f"{value:.{digits}f}"


def interval_text(value: float, low: float, high: float) -> str:
    """`1.85 [1.80, 1.91]`; [n/a] for a single prompt."""
    interval = "[n/a]" if pd.isna(low) else f"[{number(low)}, {number(high)}]"
    return "n/a" if pd.isna(value) else f"{number(value)} {interval}"


def speedup_text(value: float, low: float, high: float) -> str:
    """`interval_text`, but no interval for the baseline, which is 1 by definition."""
    return number(value) if value == low == high == 1 else interval_text(value, low, high)


def speedup_texts(part: pd.DataFrame) -> dict[str, list[str]]:
    """Speedups with their intervals by baseline, of the columns of one data set."""
    return {
        baseline: list(map(speedup_text, *(part[name] for name in speedup_columns(baseline))))
        for baseline in SPEEDUPS
        if speedup_columns(baseline)[0] in part
    }


def _display(frame: pd.DataFrame, bold: Callable[[str], str], escape: Callable[[str], str]) -> pd.DataFrame:
    """The frame as strings; a table of cells shrinks to speedup, MAT and η per data set."""
    if frame.columns.nlevels == 1:
        text = frame.map(lambda cell: escape(cell_text(cell)))
        return text.set_axis([escape(column) for column in frame.columns], axis=1)
    columns: dict[tuple[str, str], list[str]] = {
        ("", escape(name)): [escape(value) for value in _sparse(frame.index, level)]
        for level, name in enumerate(frame.index.names)
    }
    for dataset in frame.columns.unique(0):
        part = frame[dataset]
        heading = escape(dataset)
        for baseline, texts in speedup_texts(part).items():
            marks = part["best"] if baseline == BASELINE else [False] * len(texts)
            columns[(heading, escape(SPEEDUPS[baseline]))] = [
                bold(escape(cell)) if best else escape(cell) for cell, best in zip(texts, marks, strict=True)
            ]
        columns[(heading, "MAT")] = [number(value) for value in part["mat"]]
        columns[(heading, escape("η"))] = [number(value) for value in part["eta"]]
    return pd.DataFrame(columns)


def _latex_cell(text: str) -> str:
    """Text escaped; an estimate with its interval becomes mathematics, a heading loses the words for it."""
    if found := _INTERVAL.fullmatch(text):
        ends = "" if found["high"] is None else f"_{{{found['low']}}}^{{{found['high']}}}"
        return f"${found['value']}{ends}$"
    escaped = latex_escape(text.removesuffix(" [95 % CI]"))
    return "{}" + escaped if escaped.startswith(("[", "*")) else escaped


def _latex_bold(cell: str) -> str:
    """A cell of `_latex_cell` with its estimate bold."""
    return re.sub(r"^\$([-\d.]+)", r"$\\mathbf{\1}", cell) if cell.startswith("$") else f"\\textbf{{{cell}}}"


def _tabular(text: pd.DataFrame) -> list[str]:
    """Lines of a tabular with booktabs rules; spanning headings over data sets, a rule before each new first cell."""
    spanned = text.columns.nlevels > 1
    names = list(text.columns.get_level_values(-1))
    left = 2 if spanned else sum(name in _TEXT_COLUMNS for name in names)
    lines = [f"\\begin{{tabular}}{{{'l' * left + 'r' * (len(names) - left)}}}", "\\toprule"]
    if spanned:
        spans, column = [], 1
        for heading, width in text.columns.get_level_values(0).value_counts(sort=False).items():
            spans.append((heading, width, f"\\cmidrule(lr){{{column}-{column + width - 1}}}"))
            column += width
        cells = [f"\\multicolumn{{{width}}}{{c}}{{{heading}}}" for heading, width, _ in spans]
        lines += [" & ".join(cells) + r" \\", " ".join(rule for heading, _, rule in spans if heading)]
    lines += [" & ".join(names) + r" \\", "\\midrule"]
    for row, cells in enumerate(text.itertuples(index=False)):
        if row and cells[0] and "" in set(text.iloc[:, 0]):
            lines.append("\\midrule")
        lines.append(" & ".join(cells) + r" \\")
    return [*lines, "\\bottomrule", "\\end{tabular}"]


def _sparse(index: pd.MultiIndex, level: int) -> list[str]:
    """Values of an index level; the outer one is printed at the first row of its group only."""
    values = [f"{value:g}" if isinstance(value, float) else str(value) for value in index.get_level_values(level)]
    if level > 0:
        return values
    return [value if row == 0 or values[row - 1] != value else "" for row, value in enumerate(values)]


def cell_text(value: object) -> str:
    """A value of a plain table as printed everywhere."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return number(value, 3)
    return "" if value is None or value is pd.NA else str(value)
