"""The tables of finished runs: main results, every metric, ablations, efficiency, roofline; and the files they become.

Table functions hold plain numbers, except those named `_text`; `render` formats them and sets the notes under them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from talon_bench.metrics import EAGER
from talon_bench.report.ablation import ablation_notes, ablation_table
from talon_bench.report.cells import MEAN, MEAN_NOTE, Entry, best_method, cell_table, speedup_columns
from talon_bench.report.efficiency import EFFICIENCY_NOTE, efficiency_table, efficiency_text
from talon_bench.report.groups import folder_names, marked, row_groups
from talon_bench.report.load import RunData
from talon_bench.report.notes import notes
from talon_bench.report.render import (
    latex_document,
    number,
    numbers_and_text,
    speedup_text,
    to_csv,
    to_latex,
    to_markdown,
)
from talon_bench.report.roofline import roofline_notes, roofline_table, roofline_text
from talon_bench.report.sweeps import families

__all__ = [
    "best_method",
    "detail_table",
    "main_table",
    "number",
    "row_groups",
    "speedup_text",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_main",
    "write_tables",
]

_OWN_COLUMN = ("policy", "head", "lossless", "label", "budget")


def main_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """Index (target, method), columns as `cells.cell_table` has them, methods in line-up order.

    A target stands once for each combination of settings that its runs differ in, lower temperatures first, so
    no cell is ever overwritten. A method that is not lossless carries a mark. `best` is the fastest lossless
    method where it is separated from all others. With more than one data set, their mean is the last column.
    """
    rows = sorted(zip(row_groups(runs), runs, strict=True), key=lambda row: row[1].info["decode"]["temperature"])
    entries = [Entry(group, marked(run, method), run, method) for group, run in rows for method in run.summaries]
    return cell_table(entries, ["target", "method"])


def detail_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """One row per run x method with every metric, its counts and its settings."""
    rows = []
    for name, run in zip(folder_names(runs), runs, strict=True):
        best = best_method(run)
        rows += [{**_detail(run, method, best), "run": name} for method in run.summaries]
    return pd.DataFrame(rows).astype({"budget": "Int64"})


def write_main(runs: Sequence[RunData], folder: Path) -> list[Path]:
    """Writes table2.csv, .md, .tex and table2_detail.csv, .md below `folder`; returns the paths."""
    caption = "Speedup over autoregressive decoding, mean accepted tokens (MAT), draft passes per verification (η)"
    return _write(folder, _files("table2", main_table(runs), runs, [], caption))


def write_tables(runs: Sequence[RunData], folder: Path) -> list[Path]:
    """Writes every table that `runs` allow below `folder`; returns the paths.

    Plain line-ups give `table2`, sweeps an `ablation_FIELD` each, both with their details; all runs give
    `efficiency`, and `roofline` where any recorded what it takes. `tables.tex` is a document that sets the LaTeX files.
    """
    paths = []
    for field, members in families(runs).items():
        if field is None:
            paths += write_main(members, folder)
        else:
            caption = f"Effect of {field} on speedup, mean accepted tokens (MAT) and draft passes per verification (η)"
            above = ablation_notes(members, field)
            texts = _files(f"ablation_{field}", ablation_table(members, field), members, above, caption)
            paths += _write(folder, texts)
    common = notes(runs)
    if len(table := efficiency_table(runs)):
        caption = "Draft efficiency: measured speedup against the cost model"
        texts = numbers_and_text("efficiency", table, efficiency_text(table), [*common, EFFICIENCY_NOTE], caption)
        paths += _write(folder, texts)
    if len(table := roofline_table(runs)):
        caption = "Share of the memory roofline: bytes that a pass must read, over what its time would let memory give"
        texts = numbers_and_text("roofline", table, roofline_text(table), [*common, *roofline_notes(runs)], caption)
        paths += _write(folder, texts)
    return paths + _write(
        folder, {"tables.tex": latex_document([path.name for path in paths if path.suffix == ".tex"])}
    )


def _files(
    stem: str, table: pd.DataFrame, runs: Sequence[RunData], above: Sequence[str], caption: str
) -> dict[str, str]:
    """Content by file name: a table of cells in its three forms, the details of its runs in two."""
    common, detail = notes(runs), detail_table(runs)
    lines = [*above, *common, *([MEAN_NOTE] if MEAN in table.columns.unique(0) else [])]
    return {
        f"{stem}.csv": to_csv(table, lines),
        f"{stem}.md": to_markdown(table, lines),
        f"{stem}.tex": to_latex(table, lines, caption, f"tab:{stem}"),
        f"{stem}_detail.csv": to_csv(detail, common),
        f"{stem}_detail.md": to_markdown(detail, common),
    }


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _detail(run: RunData, method: str, best: str | None) -> dict:
    row, setting = run.summaries[method], run.methods[method]
    head = run.info["heads"].get(setting.get("head")) or {}
    return {
        "target": run.target,
        "dataset": run.dataset,
        "method": marked(run, method),
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
        **_over_eager(run, method),
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
    }


def _over_eager(run: RunData, method: str) -> dict[str, float]:
    """The speedup over AR launched kernel by kernel, of a run that measured it."""
    if EAGER not in run.speedups:
        return {}
    ratio = run.speedups[EAGER][method]
    return dict(zip(speedup_columns(EAGER), (ratio.value, ratio.low, ratio.high), strict=True))
