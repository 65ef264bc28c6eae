"""`python -m talon_bench.training`: make a draft head for a target.

python -m talon_bench.training training=smollm2 work=FOLDER data.root=FOLDER
python -m talon_bench.training training=smollm2 work=FOLDER data.root=FOLDER stages=[prompts,responses]
"""

from __future__ import annotations

import importlib
import os
import sys

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from talon_bench.errors import UsageError
from talon_bench.messages import one_line
from talon_bench.paths import shipped
from talon_bench.schema import to_config
from talon_bench.training.schema import STAGES, TrainConfig, register

_KEPT = "what was made is kept, the same command goes on with it"

_statuses = [0]


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="train")
def _job(composed: DictConfig) -> None:
    try:
        run(to_config(composed))
    except (UsageError, OmegaConfBaseException) as error:
        _note(f"error: {one_line(error)}", 2)
    except OSError as error:
        _note(f"error: {one_line(error)}; {_KEPT}", 1)


def run(config: TrainConfig) -> None:
    """Run the stages that the config names, in their order; those that are complete are passed over."""
    from talon_bench.training.stage import held

    with held(config.folder):
        for name in STAGES:
            if name in config.stages:
                _stage(name, config)


def _stage(name: str, config: TrainConfig) -> None:
    """torch and transformers take seconds to import; a bad request should not wait for them, nor a stage for another's."""
    if name in ("prompts", "responses", "corpus", "features"):
        importlib.import_module(f"talon_bench.training.{name}").run(config)
    elif name == "train":
        from talon_bench.training.trainer import train

        train(config, config.folder)
    else:
        from talon_bench.training.export import export

        print(f"wrote {export(config, config.folder)}", flush=True)


def main() -> None:
    """Exit status: 0, 1 for a failure of the machine (a full disk), 2 for a bad request, 130 when interrupted."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets errors reach the handlers below
    try:
        _job()
    except (HydraException, OmegaConfBaseException, OSError) as error:
        _note(f"error: {one_line(error)}", 2)
    except KeyboardInterrupt:
        _note(f"interrupted; {_KEPT}", 130)
    raise SystemExit(max(_statuses))


def _note(line: str, status: int) -> None:
    print(line, file=sys.stderr, flush=True)
    _statuses.append(status)


if __name__ == "__main__":
    main()
