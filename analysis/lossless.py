"""What finished and unfinished runs say about losslessness: answers equal to AR's, by data set and method, as one JSON line.

python -m talon_bench +experiment=lossless dataset.limit=20 data.root=FOLDER
python -m analysis.lossless results/local/lossless --out results/local/lossless.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.command import guarded
from talon_bench.errors import UsageError


def summarise(folder: Path) -> list[dict]:
    """One entry per run at or below `folder`: dtype, answers compared, and for each method how many equal AR's."""
    entries = []
    for file in sorted(folder.rglob("run.json")):
        info = json.loads(file.read_text(encoding="utf-8"))
        finished = file.parent / "turns.parquet"
        tables = [finished] if finished.is_file() else sorted((file.parent / "parts").glob("[!.]*.turns.parquet"))
        if not tables:
            continue
        turns = pd.concat([pd.read_parquet(table) for table in tables])
        compared = turns[turns["equals_ar"].notna()]
        differing = compared[compared["equals_ar"] == False]  # noqa: E712
        entries.append(
            {
                "target": info["target"],
                "dataset": info["dataset"]["name"],
                "dtype": info["provenance"]["dtype"],
                "git_commit": info["provenance"]["git_commit"],
                "answers": int((compared["method"] == "ar").sum()),
                "tokens": int(compared.loc[compared["method"] == "ar", "new_tokens"].sum()),
                "equal": {
                    method: int((compared.loc[compared["method"] == method, "equals_ar"] == True).sum())  # noqa: E712
                    for method in info["methods"]
                },
                "largest_margin": float(differing["margin"].max()) if len(differing) else None,
            }
        )
    if not entries:
        raise UsageError(f"no answers at or below {folder}; expected the folder of one or more runs")
    return entries


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.lossless", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder of runs, searched for run.json")
    parser.add_argument("--out", type=Path, help="JSON file to write as well")
    arguments = parser.parse_args(argv)
    entries = summarise(arguments.runs)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(entries))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
