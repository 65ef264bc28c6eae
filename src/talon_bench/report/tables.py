"""The main table (target x method against data sets) and the detail table, as CSV, Markdown and LaTeX.

`main_table` and `detail_table` hold plain numbers; the writers format them and set the notes under them. In
CSV the notes are comment lines: `pandas.read_csv(path, comment="#")` reads the table back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from talon_bench.metrics import paired_prompts
from talon_bench.report.load import RunData
from talon_bench.report.notes import LOSSY_MARK, notes
from talon_bench.stats import separated

CELLS = ("speedup", "ci_low", "ci_high", "mat", "eta", "best")

_OWN_COLUMN = ("policy", "head", "lossless", "label", "budget")

_LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    "η": r"$\eta$",
    LOSSY_MARK: r"$^\dagger$",
}


def main_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """Index (target, method), columns (data set, one of `CELLS`), methods in line-up order.

    A target stands once for each combination of settings that its runs differ in, so no cell is ever
    overwritten. A method that is not lossless carries a mark. `best` is the fastest lossless method where it
    is separated from all others.
    """
    groups: dict[str, dict[str, dict]] = {}
    for group, run in zip(row_groups(runs), runs, strict=True):
        best = best_method(run)
        for method, row in run.summaries.items():
            cells = (row.speedup, *row.speedup_ci95, row.mat, row.eta, method == best)
            line = groups.setdefault(group, {}).setdefault(_marked(run, method), {})
            line.update({(run.dataset, cell): value for cell, value in zip(CELLS, cells, strict=True)})
    rows = {(group, label): line for group, lines in groups.items() for label, line in lines.items()}
    datasets = dict.fromkeys(run.dataset for run in runs)
    columns = pd.MultiIndex.from_product([datasets, CELLS], names=["dataset", None])
    index = pd.MultiIndex.from_tuples(rows, names=["target", "method"])
    frame = pd.DataFrame(list(rows.values()), index=index).reindex(columns=columns)
    for dataset in datasets:
        frame[(dataset, "best")] = frame[(dataset, "best")].eq(True)
    return frame


def detail_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """One row per run x method with every metric, its counts and its settings."""
    rows = []
    for run in runs:
        best = best_method(run)
        rows += [_detail(run, method, best) for method in run.summaries]
    return pd.DataFrame(rows).astype({"budget": "Int64"})


def best_method(run: RunData) -> str | None:
    """The fastest lossless method if its paired ratio to every other one excludes 1; AR again is no rival."""
    rivals = {
        name: row.speedup
        for name, row in run.summaries.items()
        if run.methods[name]["lossless"] and name != run.baseline_again and not math.isnan(row.speedup)
    }
    if len(rivals) < 2:
        return None
    best = max(rivals, key=rivals.__getitem__)
    return best if all(_separated(run, best, other) for other in rivals if other != best) else None


def row_groups(runs: Sequence[RunData]) -> list[str]:
    """The row heading of each run: its target, and whatever tells it from other runs of the same target."""
    parts = [_settings(run) for run in runs]
    heads = []
    for run, own in zip(runs, parts, strict=True):
        peers = [other for peer, other in zip(runs, parts, strict=True) if peer.target == run.target]
        differing = [text for key, text in own.items() if len({peer[key] for peer in peers}) > 1]
        heads.append(f"{run.target} ({', '.join(differing)})" if differing else run.target)
    places = [(head, run.dataset) for head, run in zip(heads, runs, strict=True)]
    return [
        f"{head} [{run.path.name}]" if places.count((head, run.dataset)) > 1 else head
        for head, run in zip(heads, runs, strict=True)
    ]


def to_csv(frame: pd.DataFrame, lines: Sequence[str] = ()) -> str:
    """Numbers as they are, two-level columns joined by a space, notes as comment lines."""
    flat = frame.copy()
    if flat.columns.nlevels > 1:
        flat.columns = [" ".join(column) for column in flat.columns]
    keep_index = flat.index.nlevels > 1
    return flat.to_csv(index=keep_index, lineterminator="\n") + "".join(f"# {line}\n" for line in lines)


def to_markdown(frame: pd.DataFrame, lines: Sequence[str] = ()) -> str:
    """A pipe table, best cells bold, then the notes as a list."""
    text = _display(frame, bold="**{}**", escape=lambda cell: cell.replace("|", "\\|"))
    if text.columns.nlevels > 1:
        text.columns = [" ".join(column).strip() for column in text.columns]
    table = text.to_markdown(index=False, disable_numparse=True)
    return table + "\n" + ("\n" if lines else "") + "".join(f"- {line}\n" for line in lines)


def to_latex(frame: pd.DataFrame, lines: Sequence[str] = (), caption: str = "", label: str = "tab:speedup") -> str:
    r"""A `table` environment that needs `\usepackage{booktabs}` alone; notes in small print below."""
    text = _display(frame, bold=r"\textbf{{{}}}", escape=latex_escape)
    top = ["\\begin{table}[t]", "\\centering", "\\footnotesize", "\\setlength{\\tabcolsep}{3pt}"]
    title = [f"\\caption{{{latex_escape(caption)}}}", f"\\label{{{label}}}"] if caption else []
    small = ["\\par\\smallskip", "\\begin{minipage}{\\linewidth}\\scriptsize"]
    prints = [*small, *(f"{latex_escape(line)}\\par" for line in lines), "\\end{minipage}"] if lines else []
    return "\n".join([*top, *title, *_tabular(text), *prints, "\\end{table}", ""])


def latex_escape(text: str) -> str:
    """Text as LaTeX sets it literally; the report's own symbols become mathematics."""
    return "".join(_LATEX.get(char, char) for char in text)


def write_tables(runs: Sequence[RunData], folder: Path, stem: str = "table2") -> list[Path]:
    """Writes `stem`.csv, .md, .tex and `stem`_detail.csv, .md below `folder`; returns the paths."""
    lines, main, detail = notes(runs), main_table(runs), detail_table(runs)
    caption = "Speedup over autoregressive decoding, mean accepted tokens (MAT), draft passes per verification (η)"
    texts = {
        f"{stem}.csv": to_csv(main, lines),
        f"{stem}.md": to_markdown(main, lines),
        f"{stem}.tex": to_latex(main, lines, caption=caption),
        f"{stem}_detail.csv": to_csv(detail, lines),
        f"{stem}_detail.md": to_markdown(detail, lines),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def number(value: float, digits: int = 2) -> str:
    """A number as printed everywhere; what is unknown is n/a."""
    return "n/a" if pd.isna(value) else f"{value:.{digits}f}"


def speedup_text(value: float, low: float, high: float) -> str:
    """`1.85 [1.80, 1.91]`; no interval for the baseline, 1 by definition, [n/a] for a single prompt."""
    if value == low == high == 1:
        return number(value)
    interval = "[n/a]" if pd.isna(low) else f"[{number(low)}, {number(high)}]"
    return "n/a" if pd.isna(value) else f"{number(value)} {interval}"


def _separated(run: RunData, best: str, other: str) -> bool:
    pairs = paired_prompts(run.measured[0], other, best)
    return separated(
        pairs["reference_ms"],
        pairs["method_ms"],
        a_units=pairs["reference_tokens"],
        b_units=pairs["method_tokens"],
    )


def _marked(run: RunData, method: str) -> str:
    return run.labels[method] + ("" if run.methods[method]["lossless"] else f" {LOSSY_MARK}")


def _settings(run: RunData) -> dict[str, str]:
    """What may tell two runs of one target apart, as text."""
    machine, decode = run.info["provenance"], run.info["decode"]
    return {
        "temperature": f"T = {decode['temperature']:g}",
        "dtype": str(machine.get("dtype")),
        "cap": f"max {decode['max_new_tokens']} tokens",
        "hardware": str(machine.get("gpu") or machine.get("cpu")),
        "threads": f"{machine.get('threads')} threads",
    }


def _detail(run: RunData, method: str, best: str | None) -> dict:
    row, setting = run.summaries[method], run.methods[method]
    head = run.info["heads"].get(setting.get("head")) or {}
    return {
        "target": run.target,
        "dataset": run.dataset,
        "method": _marked(run, method),
        "prompts": row.prompts,
        "turns": row.turns,
        "failed": row.failed,
        "skipped": row.skipped,
        "MAT": row.mat,
        "MAT mean of prompts": row.prompt_mean_mat,
        "eta": row.eta,
        "gamma": row.gamma,
        "tokens/s": row.tokens_per_second,
        "speedup": row.speedup,
        "CI low": row.speedup_ci95[0],
        "CI high": row.speedup_ci95[1],
        "best": method == best,
        "mean of prompt ratios": row.mean_of_ratios,
        "EAGLE speed.py": row.eagle_speedup,
        "predicted": row.predicted_speedup,
        "measured/predicted": row.speedup / row.predicted_speedup,
        "draft share": row.draft_share,
        "verify share": row.verify_share,
        "other share": row.overhead_share,
        "ms/round": row.round_ms,
        "prefill ms": row.ttft_ms,
        "equal to AR": f"{row.equal_prompts} of {row.compared_prompts}" if row.compared_prompts else "n/a",
        "worst margin": row.worst_margin,
        "temperature": run.info["decode"]["temperature"],
        "budget": setting.get("budget"),
        "settings": ", ".join(f"{key}={value}" for key, value in setting.items() if key not in _OWN_COLUMN),
        "dtype": run.info["provenance"].get("dtype"),
        "head": head.get("name"),
        "head sha256": (head.get("sha256") or "")[:12] or None,
        "run": run.path.name,
    }


def _display(frame: pd.DataFrame, bold: str, escape: Callable[[str], str]) -> pd.DataFrame:
    """The frame as strings; a main table shrinks to speedup, MAT and η per data set."""
    if frame.columns.nlevels == 1:
        text = frame.map(lambda cell: escape(_cell(cell)))
        return text.set_axis([escape(column) for column in frame.columns], axis=1)
    columns: dict[tuple[str, str], list[str]] = {
        ("", name): [escape(value) for value in _sparse(frame.index, level)]
        for level, name in enumerate(frame.index.names)
    }
    for dataset in frame.columns.unique(0):
        part = frame[dataset]
        speedups = [
            bold.format(escape(cell)) if best else escape(cell)
            for cell, best in zip(
                map(speedup_text, part["speedup"], part["ci_low"], part["ci_high"]), part["best"], strict=True
            )
        ]
        heading = escape(dataset)
        columns[(heading, escape("speedup [95 % CI]"))] = speedups
        columns[(heading, "MAT")] = [number(value) for value in part["mat"]]
        columns[(heading, escape("η"))] = [number(value) for value in part["eta"]]
    return pd.DataFrame(columns)


def _tabular(text: pd.DataFrame) -> list[str]:
    """Lines of a tabular with booktabs rules; a main table gets spanning headings and a rule per target."""
    names = text.columns if text.columns.nlevels == 1 else text.columns.get_level_values(-1)
    lines = [f"\\begin{{tabular}}{{{'l' * min(2, len(names)) + 'r' * (len(names) - 2)}}}", "\\toprule"]
    if text.columns.nlevels > 1:
        spans, column = [], 1
        for heading, width in text.columns.get_level_values(0).value_counts(sort=False).items():
            spans.append((heading, width, f"\\cmidrule(lr){{{column}-{column + width - 1}}}"))
            column += width
        cells = [f"\\multicolumn{{{width}}}{{c}}{{{heading}}}" for heading, width, _ in spans]
        lines += [" & ".join(cells) + r" \\", " ".join(rule for heading, _, rule in spans if heading)]
    lines += [" & ".join(names) + r" \\", "\\midrule"]
    for row, cells in enumerate(text.itertuples(index=False)):
        if row and text.columns.nlevels > 1 and cells[0]:
            lines.append("\\midrule")
        lines.append(" & ".join(cells) + r" \\")
    return [*lines, "\\bottomrule", "\\end{tabular}"]


def _sparse(index: pd.MultiIndex, level: int) -> list[str]:
    """Values of an index level; the outer one is printed at the first row of its group only."""
    values = list(index.get_level_values(level))
    if level > 0:
        return values
    return [value if row == 0 or values[row - 1] != value else "" for row, value in enumerate(values)]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return number(value, 3)
    return "" if value is None or value is pd.NA else str(value)
