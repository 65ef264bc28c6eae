"""The main results table, its detail table and the figures, from the records of finished runs.

    python -m analysis.table2 results/reference
    python -m analysis.table2 outputs/2026-01-31 --out results/local/table2

Writes table2.csv, .md and .tex, table2_detail.csv and .md, checkpoints.csv, .md and .tex, and every figure as PNG, PDF and
caption; prints the Markdown of table2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.checkpoints import write_checkpoints
from analysis.command import guarded
from talon_bench.report.figures import all_plots
from talon_bench.report.load import load_runs
from talon_bench.report.tables import write_main


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.table2", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder of one or more runs, searched for run.json")
    parser.add_argument("--out", type=Path, default=Path("results/local/table2"), help="folder to write into")
    arguments = parser.parse_args(argv)
    runs = load_runs(arguments.runs)
    tables = write_main(runs, arguments.out)
    write_checkpoints(runs, arguments.out)
    for plot in all_plots(runs, arguments.runs):
        plot.save(arguments.out)
    print(next(path for path in tables if path.name == "table2.md").read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
