"""A stage's work for tests of the pool: quick to import in a new process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def start(folder: str) -> Callable[[int], int]:
    """Each part is a file that names the process."""

    def work(number: int) -> int:
        if number == 13:
            raise ValueError("part 13")
        (Path(folder) / str(number)).write_text(str(os.getpid()))
        return number

    return work
