"""What the analysis commands share: one line and status 2 for an error of the user."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from talon_bench.errors import UsageError


def guarded(command: Callable[[Sequence[str] | None], int]) -> Callable[[Sequence[str] | None], int]:
    """`command`, with user errors and files that cannot be read or written told on stderr."""

    def run(argv: Sequence[str] | None = None) -> int:
        try:
            return command(argv)
        except OSError as error:
            text = str(error)
            if error.filename is not None:
                text = f"{error.filename} cannot be read or written ({error.strerror}); give another path"
        except (UsageError, HydraException, OmegaConfBaseException) as error:
            text = str(error)
        print(f"error: {' '.join(text.split())}", file=sys.stderr)
        return 2

    return run
