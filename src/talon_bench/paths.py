"""Where the harness finds what ships with it, and where it keeps what it makes once."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]


def shipped(name: str) -> Path:
    """Folder `conf` or `heads`: beside `src/` in a checkout, inside the package in an installed wheel."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _CHECKOUT / name


def cache_dir() -> Path:
    """Folder for converted weights: `$TALON_BENCH_CACHE`, else `talon_bench` in the user's cache folder."""
    if explicit := os.environ.get("TALON_BENCH_CACHE"):
        return Path(explicit).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "talon_bench"
