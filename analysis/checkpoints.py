"""Which checkpoints finished runs measured: the paper's Table 2, with the commit and the checksum of what was read.

    python -m analysis.checkpoints results/reference
    python -m analysis.checkpoints outputs --out results/local/table2

Writes checkpoints.csv, .md and .tex; prints the Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.command import guarded
from talon_bench.report.load import RunData, load_runs
from talon_bench.report.paper import NAMES
from talon_bench.report.render import to_csv, to_latex, to_markdown

COLUMNS = ("target", "part", "methods", "checkpoint", "revision", "sha256", "licence")
NOTES = (
    "methods: those that the part serves; the target serves all of them, AR and prompt lookup need nothing else.",
    "revision: the commit that the hub gave; none for files that came from elsewhere.",
    "sha256: over the weight files in name order. Of a target above 4 GB: over the lines that `sha256sum FILES` prints for "
    "its weight files in name order, from the hub's own sums.",
    "licence: as the configuration states it; empty where it is not known.",
)
CAPTION = "Checkpoints of targets and draft heads"
SHOWN = 12
"""Digits of commits and checksums for readers; the CSV file has all of them."""
_HEADLESS = {"ar": "AR", "lookup": "prompt lookup"}


def checkpoint_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """One row for each checkpoint that differs in any of `COLUMNS` but `methods`, in the order of the runs."""
    methods: dict[tuple[str | None, ...], dict[str, None]] = {}
    for run in runs:
        for row, names in _rows(run):
            methods.setdefault(row, {}).update(dict.fromkeys(names))
    rows = [(*row[:2], ", ".join(names), *row[2:]) for row, names in methods.items()]
    frame = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    return frame.sort_values("target", kind="stable", ignore_index=True)


def write_checkpoints(runs: Sequence[RunData], folder: Path) -> list[Path]:
    """Writes checkpoints.csv, .md and .tex below `folder`; returns the paths."""
    table = checkpoint_table(runs)
    short = table.assign(**{name: table[name].str.slice(0, SHOWN) for name in ("revision", "sha256")})
    short = short.astype(object).where(short.notna(), None)
    texts = {
        "checkpoints.csv": to_csv(table, NOTES),
        "checkpoints.md": to_markdown(short, NOTES),
        "checkpoints.tex": to_latex(short, NOTES, CAPTION, "tab:checkpoints"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _rows(run: RunData) -> Iterator[tuple[tuple[str | None, ...], list[str]]]:
    """Each checkpoint of a run as (its row without the methods, the methods)."""
    configured = run.info["config"]
    target, heads = run.info.get("checkpoint", {}), run.info["heads"]
    licence = configured.get("target", {}).get("licence")
    row = (run.target, "target", target.get("source"), target.get("revision"), _sum_of(target), licence)
    yield row, _names(run, None)
    for kind, head in heads.items():
        own = configured.get("head", {}).get(kind, {})
        source, _, revision = head.get("origins", {}).get("checkpoint", _configured_source(own)).partition("@")
        part = f"{'EAGLE-3' if kind == 'eagle3' else 'EAGLE-1/2'} head"
        yield (run.target, part, source, revision or None, head.get("sha256"), own.get("licence")), _names(run, kind)


def _names(run: RunData, kind: str | None) -> list[str]:
    """What papers call the methods that draft with a head of `kind`, or without a head."""
    found = [(own["policy"], own.get("head")) for own in run.methods.values()]
    return [NAMES.get(key) or _HEADLESS.get(key[0]) or key[0].upper() for key in found if key[1] == kind]


def _configured_source(head: dict[str, Any]) -> str:
    """Where a record without the source says that the head came from."""
    if head.get("shipped"):
        return f"heads/{head['shipped']}"
    return head.get("hub") or "local folder"


def _sum_of(target: dict[str, Any]) -> str | None:
    """The target's checksum, over its files or over their own checksums (see `NOTES`)."""
    if target.get("sha256") or not target.get("files"):
        return target.get("sha256")
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(target["files"].items()))
    return hashlib.sha256(lines.encode()).hexdigest()


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m analysis.checkpoints", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one or more runs, searched for run.json")
    parser.add_argument("--out", type=Path, default=Path("results/local/table2"), help="folder to write into")
    arguments = parser.parse_args(argv)
    paths = write_checkpoints(load_runs(arguments.runs), arguments.out)
    print(next(path for path in paths if path.suffix == ".md").read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
