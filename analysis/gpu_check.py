"""Tables of what `talon-bench gpu-check` measured: losslessness, passes, rounds, and speeds projected from the published MAT.

    python -m analysis.gpu_check results/local/gpu_check.json
    python -m analysis.gpu_check results/local/h200.json results/local/a100.json --out results/local/gpu

Writes each table as CSV, Markdown and LaTeX, prints the Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.command import guarded
from analysis.compare_paper import PUBLISHED
from talon_bench.report.gpu import load_checks, write_checks
from talon_bench.report.paper import load_published


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("checks", type=Path, nargs="+", help="files that talon-bench gpu-check wrote")
    parser.add_argument("--out", type=Path, default=Path("results/local/gpu"), help="folder to write into")
    arguments = parser.parse_args(argv)
    paths = write_checks(load_checks(arguments.checks), load_published(PUBLISHED), arguments.out)
    shown = [path for path in paths if path.suffix == ".md"]
    print("\n".join(f"## {path.stem}\n\n{path.read_text(encoding='utf-8')}" for path in shown), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
