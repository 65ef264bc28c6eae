"""Every figure that the records of finished runs allow, as PNG, PDF and caption.

    python -m analysis.figures results/reference
    python -m analysis.figures outputs --out results/local/figures

Prints the names of the figures, one a line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.command import guarded
from talon_bench.report.figures import all_plots
from talon_bench.report.load import load_runs


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one or more runs, searched for run.json")
    parser.add_argument("--out", type=Path, default=Path("results/local/figures"), help="folder to write into")
    arguments = parser.parse_args(argv)
    for plot in all_plots(load_runs(arguments.runs), arguments.runs):
        plot.save(arguments.out)
        print(plot.stem)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
