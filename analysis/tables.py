"""Every table that finished runs allow: main results, details, ablations and draft efficiency.

    python -m analysis.tables results/reference
    python -m analysis.tables outputs --out results/local/tables

Writes CSV, Markdown and LaTeX (docs/tables.md describes each table), prints the Markdown of those that readers
start with.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.command import guarded
from talon_bench.report.load import load_runs
from talon_bench.report.tables import write_tables


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one or more runs, searched for run.json")
    parser.add_argument("--out", type=Path, default=Path("results/local/tables"), help="folder to write into")
    arguments = parser.parse_args(argv)
    paths = write_tables(load_runs(arguments.runs), arguments.out)
    shown = [path for path in paths if path.suffix == ".md" and not path.stem.endswith("_detail")]
    print("\n".join(f"## {path.stem}\n\n{path.read_text(encoding='utf-8')}" for path in shown), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
