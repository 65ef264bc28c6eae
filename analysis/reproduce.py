"""One table of the paper or of this project, from nothing to files: `make reproduce-table1|2|3`.

With a GPU it runs the grid of real checkpoints from the hub. Without one it runs the embedded default, in a size that ends
within minutes unless --full asks for every prompt. The first line says what will run.

    python -m analysis.reproduce table2 --data FOLDER
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from analysis import table2
from analysis.command import guarded
from talon_bench.compose import compose_config, swept_values
from talon_bench.lineup import resolve
from talon_bench.prompts.source import load_prompts

PROMPTS = 3
"""Prompts per data set without --full on a CPU."""
TOKENS = 64
"""Cap of an answer without --full on a CPU."""
MS_PER_TOKEN = 55
"""Of the embedded default on two cores of a server CPU, averaged over the line-up: for the estimate of the first line only."""


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.reproduce", description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=("table1", "table2", "table3"))
    parser.add_argument("--data", type=Path, help="folder of original data files")
    parser.add_argument(
        "--full", action="store_true", help="all prompts, and answers as long as the experiment asks for"
    )
    parser.add_argument("overrides", nargs="*", help="further Hydra overrides")
    arguments = parser.parse_intermixed_args(argv)
    out = Path("results/local") / arguments.table
    gpu = torch.cuda.is_available()
    experiment = arguments.table if gpu else f"{arguments.table}_embedded"
    overrides = [f"+experiment={experiment}", f"run.root={out / 'runs'}"]
    if arguments.data:
        overrides += [f"data.root={arguments.data.resolve()}", "data.source=local"]
    if not gpu and not arguments.full:
        overrides += [f"dataset.limit={PROMPTS}", f"decode.max_new_tokens={TOKENS}"]
    overrides += arguments.overrides
    print(_plan(experiment, overrides, gpu), flush=True)
    status = subprocess.run([sys.executable, "-m", "talon_bench", *overrides], check=False).returncode
    if status not in (0, 1):
        return status
    return table2.main([str(out / "runs"), "--out", str(out)]) or status


def _plan(experiment: str, overrides: list[str], gpu: bool) -> str:
    """What will run, how many prompts, and how long it takes, in one line."""
    names = swept_values("dataset", overrides)
    overrides = [override for override in overrides if not override.startswith("dataset=")]
    config = compose_config([*overrides, f"dataset={names[0]}"])
    methods, _ = resolve(config)
    if gpu:
        targets = ", ".join(swept_values("target", overrides))
        grid = f"{targets} x {', '.join(names)}, prompts: {config.data.source}"
        return f"{experiment}: {grid}, on {torch.cuda.get_device_name()}"
    sets, answers = [], 0
    for name in names:
        prompts = load_prompts(compose_config([*overrides, f"dataset={name}"]).dataset, config.data)
        answers += sum(len(prompt.turns) for prompt in prompts.prompts)
        sets.append(f"{len(prompts.prompts)} of {prompts.available} prompts of {name} ({prompts.source})")
    minutes = answers * len(methods) * config.decode.max_new_tokens * MS_PER_TOKEN / 60e3
    return (
        f"{experiment}: {config.target.name}, {len(methods)} methods, {', '.join(sets)}, up to {config.decode.max_new_tokens}"
        f" new tokens an answer; at most {minutes:.0f} min on two cores"
    )


if __name__ == "__main__":
    raise SystemExit(main())
