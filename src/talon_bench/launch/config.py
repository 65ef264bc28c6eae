"""Settings of the launchers, one group each: `launch.joblib`, `launch.slurm`, `launch.ray`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from talon_bench.errors import UsageError

# OmegaConf reads annotations at run time and needs typing.Optional on Python 3.10.
# ruff: noqa: UP045


@dataclass
class JoblibConfig:
    """Jobs of a sweep that run at once on this machine."""

    workers: Optional[int] = None
    """Jobs at once; null: as many as the GPUs allow, two on a CPU."""
    gpus: int = 1
    """GPUs of a job, which no other job has meanwhile; without a GPU the jobs share the cores instead."""
    retries: int = 1
    """How often a job whose process was killed is started again."""

    def __post_init__(self) -> None:
        _at_least("joblib", self, gpus=1, retries=0, **({} if self.workers is None else {"workers": 1}))


@dataclass
class SlurmConfig:
    """Jobs of a sweep as one job array of Slurm, through submitit."""

    cluster: str = "slurm"
    """slurm; local: the same path on this machine, all jobs at once, to try it without a scheduler."""
    partition: Optional[str] = None
    account: Optional[str] = None
    qos: Optional[str] = None
    constraint: Optional[str] = None
    gpus: int = 1
    """GPUs of a job; 0: none is asked for."""
    cpus: int = 8
    memory_gb: Optional[int] = None
    """Memory of a job in GiB; null: the partition's default."""
    minutes: int = 240
    """Time limit of a job; one that reaches it is queued again, and resumes."""
    notice_s: int = 120
    """Seconds before the limit at which a job ends by itself."""
    retries: int = 3
    """How often a job that reached its limit is queued again; preemptions do not count."""
    workers: int = 64
    """Jobs of the array that may run at once."""
    setup: list[str] = field(default_factory=list)
    """Shell lines before the job's own command, such as `module load cuda`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of sbatch by their long names."""

    def __post_init__(self) -> None:
        if self.cluster not in ("slurm", "local"):
            raise UsageError(f"launch.slurm.cluster is {self.cluster}; expected slurm or local")
        _at_least("slurm", self, gpus=0, cpus=1, minutes=1, notice_s=1, retries=0, workers=1)


@dataclass
class RayConfig:
    """Jobs of a sweep as tasks of a Ray cluster."""

    address: Optional[str] = None
    """Of a running cluster (auto: the one this machine belongs to); null: a cluster on this machine for this command."""
    cpus: int = 1
    """Cores of a job, which is also its number of threads unless launch.threads says otherwise."""
    gpus: Optional[int] = None
    """GPUs of a job; null: one where the cluster has any."""
    retries: int = 3
    """How often a job is started again when its process, worker or machine is lost."""

    def __post_init__(self) -> None:
        _at_least("ray", self, cpus=1, retries=0, **({} if self.gpus is None else {"gpus": 0}))


def _at_least(group: str, config: Any, **least: int) -> None:
    for name, minimum in least.items():
        if getattr(config, name) < minimum:
            raise UsageError(f"launch.{group}.{name} is {getattr(config, name)}; give {minimum} or more")
