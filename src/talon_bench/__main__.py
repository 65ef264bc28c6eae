"""`python -m talon_bench`, or `talon-bench`: measure a line-up.

python -m talon_bench dataset=gsm8k lineup=table2 data.root=FOLDER
python -m talon_bench +sweep=alpha
python -m talon_bench -m method.alpha=0.01,0.03
python -m talon_bench +experiment=table2_embedded
"""

from __future__ import annotations

import json
import os
import sys

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.schema import register, to_config

_KEPT = "what was measured is kept, the same command without run.fresh resumes it"

_statuses = [0]
"""Exit statuses of this process's jobs: a job that goes wrong does not stop those after it."""


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="config")
def _job(composed: DictConfig) -> None:
    try:
        config = to_config(composed)
        # torch and transformers take seconds to import; a bad request should not wait for them.
        from talon_bench.job import run

        outcome = run(config)
        print(json.dumps(outcome.result), flush=True)
        if outcome.fault:
            _note(f"fault: {outcome.fault}", 1)
    except (UsageError, OmegaConfBaseException) as error:
        _note(f"error: {_one_line(error)}", 2)
    except OSError as error:
        _note(f"error: {_one_line(error)}; {_KEPT}", 1)


def main() -> None:
    """Exit status: 0, 1 for a run whose numbers are unfit for use, 2 for a bad request, 130 when interrupted."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets errors reach the handlers below
    try:
        _job()
    except (HydraException, OmegaConfBaseException, OSError) as error:
        _note(f"error: {_one_line(error)}", 2)
    except KeyboardInterrupt:
        _note(f"interrupted; {_KEPT}", 130)
    raise SystemExit(max(_statuses))


def _one_line(error: Exception) -> str:
    """The part of a message that says what is wrong: Hydra appends search paths, and causes say what a value should be."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = error.__cause__
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
        lines[1:] = [line.strip() for line in str(cause).splitlines()[:1]]
    kept = [
        line for line in lines if not line.startswith(("full_key", "object_type", "Config search path", "provider="))
    ]
    return " ".join(kept) or type(error).__name__


def _note(line: str, status: int) -> None:
    print(line, file=sys.stderr, flush=True)
    _statuses.append(status)


if __name__ == "__main__":
    main()
