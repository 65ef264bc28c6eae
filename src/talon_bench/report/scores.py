"""Answer quality beside speed: the table of scores per method, from run folders that were scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from talon_bench.errors import UsageError
from talon_bench.metrics import BASELINE
from talon_bench.report.groups import marked, row_groups
from talon_bench.report.load import RunData
from talon_bench.report.notes import name, notes
from talon_bench.report.render import number, to_csv, to_latex, to_markdown
from talon_bench.scoring.run import read_scores

KEY = ["prompt_id", "turn"]


@dataclass(frozen=True)
class MethodScore:
    """One method's answers: how many were scored and correct, and how many verdicts are not AR's for the same prompt.

    `differing` is None where AR has no scored answer to compare with.
    """

    answers: int
    correct: int
    differing: int | None

    @property
    def share(self) -> float:
        """Share of correct answers; nan for none."""
        return self.correct / self.answers if self.answers else float("nan")

    @property
    def equal(self) -> str:
        return "n/a" if self.differing is None else "no" if self.differing else "yes"


def method_scores(run: RunData) -> tuple[dict[str, Any], dict[str, MethodScore]] | None:
    """(scores.json, scores by method in line-up order) of one run; None where it is not scored."""
    found = read_scores(run.path)
    if found is None:
        return None
    facts, table = found
    verdicts = table.to_pandas().pivot(index=KEY, columns="method", values="correct")
    scores = {}
    for method in run.methods:
        own = verdicts[method].dropna() if method in verdicts else pd.Series(dtype=bool)
        compared = verdicts[[BASELINE, method]].dropna() if {BASELINE, method} <= set(verdicts) else ()
        differing = int((compared.iloc[:, 0] != compared.iloc[:, 1]).sum()) if len(compared) else None
        scores[method] = MethodScore(len(own), int(own.astype(bool).sum()), differing)
    return facts, scores


def score_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """One row per scored run x method; UsageError where none of the runs is scored."""
    rows = []
    for group, run in zip(row_groups(runs), runs, strict=True):
        found = method_scores(run)
        if found is None:
            continue
        facts, scores = found
        for method, score in scores.items():
            summary = run.summaries[method]
            rows.append(
                {
                    "target": group,
                    "dataset": run.dataset,
                    "method": marked(run, method),
                    "n": score.answers,
                    "measure": facts["scorer"],
                    "score %": 100 * score.share,
                    "equal to AR": score.equal,
                    "differing": score.differing,
                    "MAT": summary.mat,
                    "η": summary.eta,
                    "speedup": summary.speedup,
                }
            )
    if not rows:
        raise UsageError("none of these runs has scores; run with scoring=on, or make score RUNS=... DATA=...")
    return pd.DataFrame(rows).astype({"differing": "Int64"})


def score_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table of scores as it is printed: shares with one digit, the rest with two."""
    digits = {"score %": 1, "MAT": 2, "η": 2, "speedup": 2}
    texts = {column: [number(value, places) for value in table[column]] for column, places in digits.items()}
    return table.assign(**texts, differing=["n/a" if pd.isna(value) else str(value) for value in table["differing"]])


def score_notes(runs: Sequence[RunData]) -> list[str]:
    """What stands under the table: how the verdicts of each run came about and under which guards, then all other notes."""
    lines = [
        "Score: share of correct answers among the n that were measured, from the recorded output ids. equal to AR: whether"
        " every prompt has AR's verdict; differing: how many have another."
    ]
    for run in runs:
        found = method_scores(run)
        if found is None:
            lines.append(f"{name(run)}: not scored.")
            continue
        facts = found[0]
        how = ", ".join(f"{count} by {kind}" for kind, count in facts["how"].items()) or "no answers"
        guards = ", ".join(guard for guard, active in facts["guards"].items() if active)
        lines.append(f"{name(run)}: {facts['scorer']}, {how}" + (f"; guards: {guards}." if guards else "."))
    return [*lines, *notes(runs)]


def write_scores(runs: Sequence[RunData], folder: Path) -> list[Path]:
    """Writes scores.csv, .md and .tex into `folder`; returns the paths."""
    table, lines = score_table(runs), score_notes(runs)
    text = score_text(table)
    contents = {
        "scores.csv": to_csv(table, lines),
        "scores.md": to_markdown(text, lines),
        "scores.tex": to_latex(text, lines, "Answer quality beside speed", "tab:scores"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (folder / file).write_text(content, encoding="utf-8")
    return [folder / file for file in contents]


def scores_summary(run: RunData) -> Table | None:
    """The scores of one run for the terminal, at most 100 columns wide; None where it is not scored."""
    found = method_scores(run)
    if found is None:
        return None
    facts, scores = found
    table = Table(title=f"{run.dataset}: {facts['scorer']}", title_justify="left")
    table.add_column("method", overflow="fold", max_width=28)
    for heading in ("correct", "score", "verdicts equal to AR's", "MAT", "η", "speedup"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method, score in scores.items():
        summary = run.summaries[method]
        table.add_row(
            run.labels[method],
            f"{score.correct}/{score.answers}",
            f"{number(100 * score.share, 1)} %",
            score.equal + (f" ({score.differing} differ)" if score.differing else ""),
            *(number(value) for value in (summary.mat, summary.eta, summary.speedup)),
        )
    return table


def scores_json(run: RunData) -> dict[str, Any]:
    """The scores of one run for its last line: `scorer` null and no methods where it is not scored."""
    found = method_scores(run)
    if found is None:
        return {"scorer": None, "methods": {}}
    facts, scores = found
    return {
        "scorer": facts["scorer"],
        "methods": {
            method: {
                "answers": score.answers,
                "correct": score.correct,
                "score": score.share if score.answers else None,
                "differing_from_ar": score.differing,
            }
            for method, score in scores.items()
        },
    }
