"""The report page: one self-contained HTML file with tables, figures, the tree explorer and provenance of finished runs.

    python -m analysis.report results/reference
    python -m analysis.report outputs --out outputs/report.html

Prints the path of the page. docs/report.md describes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.command import guarded
from talon_bench.report.load import load_runs
from talon_bench.report.page import write_page


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one or more runs, searched for run.json")
    parser.add_argument("--out", type=Path, default=Path("results/local/report.html"), help="file to write")
    arguments = parser.parse_args(argv)
    print(write_page(load_runs(arguments.runs), arguments.out, arguments.runs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
