"""Learning curves: the points that a training leaves in curve.jsonl, as one table and one figure.

    python -m talon_bench.training.curve work/train/eagle3 work/train/half --out results/local/curves

Writes learning_curve.csv, .png, .pdf and the caption, .txt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from talon_bench.errors import UsageError
from talon_bench.report.figures.plot import Plot
from talon_bench.report.figures.style import COLOURS, MARKERS, facets, legend
from talon_bench.training.checkpoint import CURVE, read_points

STEM = "learning_curve"
MEAN = "mean"
"""Name of the row that stands for all families, each counted once."""


def table(folders: Sequence[Path]) -> pd.DataFrame:
    """One row per training, point and family, and one for their mean: accuracies of the first and last step, chain."""
    rows = []
    for folder, name in zip(folders, _names(folders), strict=True):
        points = read_points(folder)
        if not points:
            raise UsageError(f"{folder.name} has no points in {CURVE}; give the folder of a training that was started")
        for point in points:
            families = point["families"]
            own = [
                {
                    "family": family,
                    "top1": scores["top1"][0],
                    "top3": scores["top3"][0],
                    "top10": scores["top10"][0],
                    "top1_last": scores["top1"][-1],
                    "chain": scores["chain"],
                }
                for family, scores in families.items()
            ]
            frame = pd.DataFrame(own)
            if len(own) > 1:
                own.append({"family": MEAN, **frame.drop(columns="family").astype(float).mean().round(5).to_dict()})
            common = {key: point[key] for key in ("step", "tokens", "seconds", "epoch", "data_tokens", "lr", "loss")}
            rows += [{"training": name, **common, **row} for row in own]
    return pd.DataFrame(rows)


def figure(points: pd.DataFrame) -> Plot:
    """Chain length against trained tokens, a panel per family, a line per training."""
    families = list(dict.fromkeys(points["family"]))
    drawn, axes = facets(
        len(families), 2.0, "trained tokens, repetitions counted (millions)", "chain of 5", sharex=True
    )
    names = list(dict.fromkeys(points["training"]))
    looks = {
        name: {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        for place, name in enumerate(names)
    }
    for axis, family in zip(axes, families, strict=True):
        axis.set_title(family)
        for name, look in looks.items():
            own = points[(points["family"] == family) & (points["training"] == name)]
            axis.plot(own["tokens"] / 1e6, own["chain"], **look)
    legend(drawn, looks)
    caption = (
        "Learning curves on held-out prompts: tokens per verification of a greedy chain of 5, bonus token included,"
        " against trained tokens. Teacher-forced on the target's own answers, mean over all positions."
    )
    return Plot(STEM, drawn, caption)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 on success, 2 with one line on stderr for an error of the user."""
    parser = argparse.ArgumentParser(prog="python -m talon_bench.training.curve", description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", help="folders of trainings, which hold curve.jsonl")
    parser.add_argument("--out", type=Path, default=Path("results/local/curves"), help="folder to write into")
    arguments = parser.parse_args(argv)
    try:
        points = table(arguments.folders)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figure(points).save(arguments.out)
    points.to_csv(arguments.out / f"{STEM}.csv", index=False)
    return 0


def _names(folders: Sequence[Path]) -> list[str]:
    """Folder names, with the parent's in front where two are the same."""
    names = [folder.resolve().name for folder in folders]
    return [
        name if names.count(name) == 1 else f"{folder.resolve().parent.name}/{name}"
        for folder, name in zip(folders, names, strict=True)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
