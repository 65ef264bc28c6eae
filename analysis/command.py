"""What the analysis commands share: one line and status 2 for an error of the user."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from talon_bench.errors import UsageError


def guarded(command: Callable[[Sequence[str] | None], int]) -> Callable[[Sequence[str] | None], int]:
    """`command`, with user errors printed on stderr."""

    def run(argv: Sequence[str] | None = None) -> int:
        try:
            return command(argv)
        except (UsageError, HydraException, OmegaConfBaseException) as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            return 2

    return run
