"""Original data files beside the repository, for tests that need all of their rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_file(name: str) -> Path:
    """A file of TALON_BENCH_SHARED, by default ../shared beside the repository; the test is skipped without it."""
    shared = os.environ.get("TALON_BENCH_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    file = Path(shared) / "data" / name
    if not file.is_file():
        pytest.skip(f"data/{name} is not in TALON_BENCH_SHARED")
    return file
