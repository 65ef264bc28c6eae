"""From a sweep to its jobs, and from their ends to what the command prints and returns."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from talon_bench.errors import UsageError
from talon_bench.launch.process import Ended, Job

statuses: list[int] = []
"""Exit statuses of the jobs that launchers of this process have seen end."""

_OF_THE_SWEEP = ("hydra.mode", "hydra.sweep", "hydra.launcher", "hydra/launcher", "hydra/sweeper")
"""Beginnings of Hydra's own overrides that say how to sweep, and mean nothing to a job."""


def make_jobs(
    config: DictConfig, job_overrides: Sequence[Sequence[str]], *, retries: int = 0, echo: bool = False
) -> list[Job]:
    """One job per list of overrides, named after those in which it differs from the others."""
    common = set.intersection(*map(set, job_overrides))
    hydra = [text for text in config.hydra.overrides.hydra if not text.startswith(_OF_THE_SWEEP)]
    sources = [source for source in config.hydra.runtime.config_sources if source.provider == "command-line"]
    flags = [word for source in sources for word in ("--config-dir", source.path)]
    jobs = []
    for number, overrides in enumerate(job_overrides):
        name = " ".join(text for text in overrides if text not in common) or f"job {number}"
        arguments = (*flags, *hydra, *overrides, "hydra.mode=RUN")
        jobs.append(Job(name, arguments, os.getcwd(), retries, echo))
    return jobs


def finish(jobs: Sequence[Job], job_overrides: Sequence[Sequence[str]], ends: Iterator[Ended]) -> list[JobReturn]:
    """Print what the jobs printed, in their order, each as soon as it and those before it have ended; note their statuses."""
    returns = []
    for job, overrides, ended in zip(jobs, job_overrides, ends, strict=True):
        if not job.echo:
            for line in ended.err.splitlines():
                print(f"[{job.name}] {line}", file=sys.stderr, flush=True)
        sys.stdout.write(ended.out)
        sys.stdout.flush()
        statuses.append(ended.status)
        returns.append(JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED, _return_value=ended.status))
    return returns


def needed(module: str, launch: str) -> ModuleType:
    """The library of a launcher; UsageError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UsageError(f"launch={launch} needs the package {module}: pip install 'talon-bench[{launch}]'") from None
