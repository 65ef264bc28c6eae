"""One table or figure of the paper, or this project's main table, from nothing to files: `make reproduce-table1|2|3`.

With a GPU it runs the grid of real checkpoints from the hub. Without one it runs the embedded default, in a size that ends
within minutes unless --full asks for every prompt. The first line says what will run.

    python -m analysis.reproduce table2 --data FOLDER
    python -m analysis.reproduce figure12
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from analysis import figures, table2, tables
from analysis.command import guarded
from talon_bench.compose import compose_config, swept_values
from talon_bench.lineup import resolve
from talon_bench.prompts.source import load_prompts

TABLES = ("table1", "table2", "table3")
FIGURES = ("figure3", "figure4", "figure6", "figure7", "figure12", "figure13")
"""Figures of the paper that a run gives: each an experiment of its own, and one with `_embedded` behind its name."""
SWEPT = ("dataset", "target", "method")
"""What the jobs of one experiment differ in."""
PROMPTS = 3
"""Prompts per data set without --full on a CPU."""
TOKENS = 64
"""Cap of an answer without --full on a CPU."""
MS_PER_TOKEN = 55
"""Of the embedded default on two cores of a server CPU, averaged over the line-up: for the estimate of the first line only."""


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.reproduce", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=(*TABLES, *FIGURES))
    parser.add_argument("--data", type=Path, help="folder of original data files")
    parser.add_argument(
        "--full", action="store_true", help="all prompts, and answers as long as the experiment asks for"
    )
    parser.add_argument("overrides", nargs="*", help="further Hydra overrides")
    arguments = parser.parse_intermixed_args(argv)
    out = Path("results/local") / arguments.what
    gpu = torch.cuda.is_available()
    experiment = arguments.what if gpu else f"{arguments.what}_embedded"
    overrides = [f"+experiment={experiment}", f"run.root={out / 'runs'}"]
    if arguments.data:
        overrides += [f"data.root={arguments.data.resolve()}", "data.source=local"]
    overrides += [*_size(experiment, arguments.full, gpu), *arguments.overrides]
    print(_plan(experiment, overrides, gpu), flush=True)
    status = subprocess.run([sys.executable, "-m", "talon_bench", *overrides], check=False).returncode
    if status not in (0, 1):
        return status
    return _report(arguments.what, out) or status


def _size(experiment: str, full: bool, gpu: bool) -> list[str]:
    """Overrides for the size asked for: the experiment's own on a GPU, minutes on a CPU, every prompt with --full."""
    if not full:
        return [] if gpu else [f"dataset.limit={PROMPTS}", f"decode.max_new_tokens={TOKENS}"]
    limited = compose_config([f"+experiment={experiment}"]).dataset.limit is not None
    return ["dataset.limit=null"] if limited else []


def _report(what: str, out: Path) -> int:
    """Tables and figures of the runs, with the checkpoints behind them; 0, or the status of the first that failed."""
    runs = [str(out / "runs"), "--out", str(out)]
    if what in TABLES:
        return table2.main(runs)
    return tables.main(runs) or figures.main(runs)


def _plan(experiment: str, overrides: list[str], gpu: bool) -> str:
    """What will run, how many prompts, and how long it takes, in one line."""
    fixed = [override for override in overrides if override.partition("=")[0] not in SWEPT]
    names, targets, under_test = (
        swept_values(key, [*fixed, *(override for override in overrides if override.startswith(f"{key}="))])
        for key in SWEPT
    )
    fixed += [f"target={target}" for target in targets[:1]]
    jobs = [[*fixed, f"dataset={names[0]}", f"method={name}"] for name in under_test] or [
        [*fixed, f"dataset={names[0]}"]
    ]
    configs = [compose_config(job) for job in jobs]
    methods = sum(len(resolve(config)[0]) for config in configs)
    config = configs[0]
    if gpu:
        grid = f"{', '.join(targets)} x {', '.join(names)}, prompts: {config.data.source}"
        return f"{experiment}: {grid}, on {torch.cuda.get_device_name()}"
    sets, answers = [], 0
    for name in names:
        prompts = load_prompts(compose_config([*fixed, f"dataset={name}"]).dataset, config.data)
        answers += sum(len(prompt.turns) for prompt in prompts.prompts)
        sets.append(f"{len(prompts.prompts)} of {prompts.available} prompts of {name} ({prompts.source})")
    minutes = answers * methods * config.decode.max_new_tokens * MS_PER_TOKEN / 60e3
    return (
        f"{experiment}: {config.target.name}, {methods} methods, {', '.join(sets)}, up to {config.decode.max_new_tokens}"
        f" new tokens an answer; at most {minutes:.0f} min on two cores"
    )


if __name__ == "__main__":
    raise SystemExit(main())
