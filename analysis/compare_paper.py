"""Our results beside the published ones: first the settings that differ, then cell by cell or, failing that, the shape.

    python -m analysis.compare_paper results/reference
    python -m analysis.compare_paper outputs --out results/local/compare.md

Cells are compared for the same target, data set, method and temperature only, and only where neither top-p nor top-k cut
the distributions. For a target that no source has, the ratio of TALON to EAGLE-3 stands beside the published range of that
ratio.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.command import guarded
from talon_bench.errors import UsageError
from talon_bench.report.load import RunData, load_runs
from talon_bench.report.paper import (
    cells_text,
    load_published,
    load_settings,
    same_cells,
    setting_differences,
    shapes,
    shapes_text,
    truncation,
)
from talon_bench.report.render import to_markdown
from talon_bench.report.sweeps import families

SHAPE_NOTES = (
    "TALON / EAGLE-3: ratio of speedups over the same prompts in the same run; above 1, TALON is faster.",
    "published: lowest to highest and mean ratio of the TALON paper's targets for the data set and temperature.",
    "A ratio depends on what a draft pass costs beside a verification (gamma), hence on target, head and machine.",
)
PUBLISHED = Path(__file__).resolve().parents[1] / "results" / "paper"


def comparison(runs: Sequence[RunData], published: pd.DataFrame, settings: pd.DataFrame) -> str:
    """The report as Markdown."""
    parts = ["## Settings that differ", to_markdown(setting_differences(runs, settings))]
    cells = same_cells(runs, published)
    if len(cells):
        parts += ["## The same cells", to_markdown(cells_text(cells), ["difference: ours - published."])]
    unknown = [target for target in dict.fromkeys(run.target for run in runs) if target not in set(published["target"])]
    if unknown:
        known = ", ".join(sorted(published["target"].unique()))
        parts.append(
            f"No source has {', '.join(unknown)} (they have {known}), so no cell of it has a published value to be compared "
            "with. Only the shape can be: how TALON stands to EAGLE-3 under equal conditions. Equal numbers are not expected.\n"
        )
    cut = dict.fromkeys(text for run in runs for text in truncation(run))
    if cut:
        parts.append(
            f"No source cuts the distributions it samples from, here {', '.join(cut)}: those runs stand alone.\n"
        )
    ratios = shapes(runs, published)
    if len(ratios):
        parts += [
            "## The shape: TALON over EAGLE-3, one head, one budget",
            to_markdown(shapes_text(ratios), SHAPE_NOTES),
        ]
    return "\n".join(f"{part}\n" if part.startswith("##") else part for part in parts)


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.compare_paper", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one or more runs, searched for run.json")
    parser.add_argument("--out", type=Path, help="Markdown file to write as well")
    arguments = parser.parse_args(argv)
    runs = families(load_runs(arguments.runs)).get(None)
    if runs is None:
        raise UsageError(
            f"{arguments.runs[0]} holds sweeps only; expected a line-up in the papers' settings, run one first"
        )
    text = comparison(runs, load_published(PUBLISHED), load_settings(PUBLISHED))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
