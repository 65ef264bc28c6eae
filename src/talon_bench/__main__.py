"""`python -m talon_bench`, or `talon-bench`: measure a line-up, plan or examine one, or try the engine on a GPU.

python -m talon_bench dataset=gsm8k lineup=table2 data.root=FOLDER
python -m talon_bench +sweep=alpha
python -m talon_bench -m method.alpha=0.01,0.03
python -m talon_bench +experiment=table2_embedded
python -m talon_bench plan +experiment=table1 plan.gpu=H200
python -m talon_bench doctor target=llama31_8b
python -m talon_bench gpu-check
"""

from __future__ import annotations

import json
import os
import sys

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from talon_bench.commands import take_command
from talon_bench.errors import UsageError
from talon_bench.launch.process import KEPT, end_with_parent, launched
from talon_bench.launch.sweep import statuses as _launched_statuses
from talon_bench.messages import one_line
from talon_bench.paths import shipped
from talon_bench.schema import register, to_config

_statuses = [0]
"""Exit statuses of the jobs in this process: one that goes wrong does not stop those after it."""


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
        _note(f"error: {one_line(error)}", 2)
    except OSError as error:
        _note(f"error: {one_line(error)}; {KEPT}", 1)


def main() -> None:
    """Exit status: 0, 1 for a run whose numbers are unfit for use, 2 for a bad request, 130 when interrupted."""
    register()
    _launched_statuses.clear()
    if launched():
        end_with_parent()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets errors reach the handlers below
    command = None
    try:
        command = take_command(sys.argv[1:])
        if command is None:
            _job()
        else:
            run, arguments = command
            _statuses.append(run(arguments))
    except (UsageError, HydraException, OmegaConfBaseException, OSError) as error:
        _note(f"error: {one_line(error)}", 2)
    except AssertionError as error:
        if not str(error).startswith("Unexpected type for root"):
            raise
        # OmegaConf's only word for it.
        _note("error: an option of a group that is null; choose a file first: +sweep=, launch=joblib, slurm or ray", 2)
    except KeyboardInterrupt:
        _note(f"interrupted; {KEPT}" if command is None else "interrupted", 130)
    raise SystemExit(max([*_statuses, *_launched_statuses]))


def _note(line: str, status: int) -> None:
    print(line, file=sys.stderr, flush=True)
    _statuses.append(status)


if __name__ == "__main__":
    main()
