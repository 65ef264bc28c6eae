"""What the jobs of one sweep share, and what tells them apart, from Hydra's overrides."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

_ELSEWHERE = ("run", "tracking", "data.root", "launch", "hydra", "scoring")
"""Options that say where and how a job runs, not what it measures."""
_TOLD = ("method", "decode", "sweep")
"""Options that tell runs of one target, data set and line-up apart."""


class SweepGroup(Callback):
    """Gives all jobs of a multirun one W&B group, unless the user named one; registered by conf/tracking/wandb.yaml.

    The group is made of the overrides that define the sweep, so a repeated or resumed command has it again, on any
    machine and under any launcher.
    """

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        if config.tracking.group is not None:
            return
        overrides = config.hydra.overrides.task
        params = config.hydra.sweeper.get("params")
        params = OmegaConf.to_container(params) if params else {}
        with read_write(config):
            overrides.append(f"tracking.group='{sweep_group(list(overrides), params)}'")


def sweep_group(overrides: Sequence[str], params: Mapping[str, object]) -> str:
    """`AXES-HASH` of a sweep: what it varies, and a hash of all overrides that decide what its jobs measure.

    `overrides` are those of the command line, `params` Hydra's `sweeper.params`, which a config file may set.
    """
    given = _parse([*overrides, *(f"{key}={value}" for key, value in params.items())])
    deciding = [override for override in given if not _under(override, _ELSEWHERE)]
    text = "\n".join(sorted(str(override.input_line) for override in deciding))
    axes = sorted({str(override.key_or_group) for override in deciding if override.is_sweep_override()})
    return f"{'+'.join(axes) or 'sweep'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def told_overrides() -> list[str]:
    """What this job's overrides change of method, decoding and sweep, sorted: `method.alpha=0.1`. Whole numbers are padded.

    Empty outside a Hydra job.
    """
    if not HydraConfig.initialized():
        return []
    last = {override.key_or_group: override for override in _parse(list(HydraConfig.get().overrides.task))}
    told = [override for override in last.values() if _under(override, _TOLD) and not override.is_delete()]
    return sorted(_sortable(override) for override in told)


def _parse(overrides: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


def _under(override: Override, roots: Sequence[str]) -> bool:
    key = str(override.key_or_group)
    return any(key == root or key.startswith((f"{root}.", f"{root}/")) for root in roots)


def _sortable(override: Override) -> str:
    value = override.get_value_element_as_str()
    return f"{override.key_or_group}={value.zfill(3) if value.isdigit() else value}"
