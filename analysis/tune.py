"""The settings that a search found fastest: every combination that runs measured, by its speedup over AR, and the best one.

    python -m talon_bench +experiment=tune_eagle3_embedded run.root=results/local/tune
    python -m analysis.tune results/local/tune

Combinations are compared by their mean speedup over the data sets, and only those that met every data set. The last line of
stdout holds the overrides that give the best one to a run. Tune on other prompts than those that a table then reports.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.command import guarded
from talon_bench.errors import UsageError
from talon_bench.report.load import RunData, load_runs
from talon_bench.report.render import number, to_markdown
from talon_bench.report.sweeps import variants

_NO_SETTING = ("policy", "label", "lossless", "head")


def searched(runs: Sequence[RunData], method: str) -> pd.DataFrame:
    """One row per combination of settings of `method`, the fastest first.

    Columns: the settings, then `data sets`, `speedup` (mean over the data sets), `lowest` (of them) and `MAT` (mean).
    Raises UsageError where no run sweeps the method, and where the runs are of several targets.
    """
    rows = [row for run in runs for row in _measured(run, method)]
    if not rows:
        raise UsageError(f"no run sweeps {method}; run +experiment=tune_eagle3 first, or name the method with --method")
    if len(targets := sorted({run.target for run in runs})) > 1:
        raise UsageError(f"runs of {', '.join(targets)} together; tune one target at a time, give the runs of one")
    frame = pd.DataFrame(rows)
    settings = [name for name in frame.columns if name not in ("dataset", "speedup", "MAT")]
    grouped = frame.groupby(settings, sort=False)
    table = grouped.agg(
        **{"data sets": ("dataset", "nunique"), "speedup": ("speedup", "mean"), "lowest": ("speedup", "min")},
        MAT=("MAT", "mean"),
    ).reset_index()
    complete = table[table["data sets"] == frame["dataset"].nunique()]
    if complete.empty:
        raise UsageError(f"no settings of {method} were measured on every data set of these runs; finish the search")
    return complete.sort_values("speedup", ascending=False, kind="stable", ignore_index=True)


def _measured(run: RunData, method: str) -> list[dict]:
    """The variants of `method` in a run, with their settings and what they reached."""
    found = []
    for variant in variants(run):
        if variant.base == method:
            own = {key: value for key, value in run.methods[variant.method].items() if key not in _NO_SETTING}
            row = run.summaries[variant.method]
            found.append({**own, "dataset": run.dataset, "speedup": row.speedup, "MAT": row.mat})
    return found


def best_overrides(table: pd.DataFrame, method: str) -> list[str]:
    """Hydra overrides that put the first row of `searched` into a run as its method under test."""
    settings = [name for name in table.columns if name not in ("data sets", "speedup", "lowest", "MAT")]
    return [f"method={method}", *(f"method.{name}={table[name].iloc[0]}" for name in settings)]


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tune", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one or more runs, searched for run.json")
    parser.add_argument("--method", default="eagle3_tuned", help="the method that the runs sweep")
    arguments = parser.parse_args(argv)
    runs = load_runs(arguments.runs)
    table = searched(runs, arguments.method)
    text = table.assign(**{name: table[name].map(number) for name in ("speedup", "lowest", "MAT")})
    print(to_markdown(text, ["speedup, lowest: mean over the data sets and the least of them; first row: the best."]))
    print(json.dumps({"target": runs[0].target, "overrides": best_overrides(table, arguments.method)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
