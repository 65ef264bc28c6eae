"""Launchers of Hydra for the jobs of a sweep, chosen by `launch=joblib`, `launch=slurm` and `launch=ray` (docs/clusters.md).

Hydra takes launchers from this namespace only. Those that its project publishes end the whole sweep when one process is
killed, and do not keep two jobs off one GPU; these hand every job to `talon_bench.launch`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from talon_bench.errors import UsageError
from talon_bench.launch.process import JOBS_AT_ONCE, KEPT, Ended, Job, interrupt
from talon_bench.launch.slots import find_slots, threads_environment
from talon_bench.launch.sweep import finish, make_jobs, needed

RAY_STORE_BYTES = 100 << 20
"""Shared memory of a cluster for one command: results are a few kilobytes."""


class _JobLauncher(Launcher):
    """What the launchers share: jobs in the sweep's order in, their ends in the same order out."""

    config: DictConfig

    def setup(self, *, hydra_context: object, task_function: object, config: DictConfig) -> None:
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        jobs = make_jobs(self.config, job_overrides)
        with contextlib.closing(self._run(jobs, OmegaConf.to_object(self.config.launch))) as ends:
            return finish(jobs, job_overrides, ends)

    @abstractmethod
    def _run(self, jobs: list[Job], launch: Any) -> Iterator[Ended]:
        """Ends of the jobs, in order; whatever still runs when this generator is closed is ended."""


class JoblibLauncher(_JobLauncher):
    """Several jobs at once on this machine."""

    def _run(self, jobs: list[Job], launch: Any) -> Iterator[Ended]:
        joblib = needed("joblib", "joblib")
        slots = find_slots(launch, len(jobs))
        for job in jobs:
            job.retries, job.echo = launch.joblib.retries, True
        # Threads, each of which waits for the process of a job: a killed one is no harm to the others.
        parallel = joblib.Parallel(slots.count, backend="threading", batch_size=1, return_as="generator")
        try:
            yield from parallel(joblib.delayed(slots.run)(job) for job in jobs)
        finally:
            interrupt(jobs)


class SlurmLauncher(_JobLauncher):
    """One job array of Slurm; a job that is preempted or reaches its time limit is queued again, and resumes."""

    def _run(self, jobs: list[Job], launch: Any) -> Iterator[Ended]:
        submitit = needed("submitit", "slurm")
        settings = launch.slurm
        folder = Path(self.config.hydra.sweep.dir).resolve() / ".submitit"
        try:
            executor = submitit.AutoExecutor(
                folder / "%j", settings.cluster, **{f"{settings.cluster}_max_num_timeout": settings.retries}
            )
            executor.update_parameters(**_slurm_parameters(launch))
        except (RuntimeError, ValueError, NameError) as error:
            raise UsageError(f"launch=slurm: {' '.join(str(error).split())}") from None
        at_once = str(len(jobs)) if settings.cluster == "local" else ""
        environment = {JOBS_AT_ONCE: at_once, **threads_environment(launch.threads or settings.cpus)}
        with executor.batch():
            submitted = [
                executor.submit(_Submission(replace(job, retries=settings.retries), environment)) for job in jobs
            ]
        for job, entry in zip(jobs, submitted, strict=True):
            print(f"[{job.name}] job {entry.job_id} of {settings.cluster}", file=sys.stderr, flush=True)
        try:
            for entry in submitted:
                yield _slurm_end(entry)
        finally:
            left = [entry for entry in submitted if not entry.paths.result_pickle.exists()]
            for entry in left:
                entry.cancel(check=False)
            if settings.cluster == "local":
                for entry in left:
                    entry.wait()


class RayLauncher(_JobLauncher):
    """Tasks of a Ray cluster, started for this command on this machine, or given."""

    def _run(self, jobs: list[Job], launch: Any) -> Iterator[Ended]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = needed("ray", "ray")
        settings = launch.ray
        local = {} if settings.address else {"include_dashboard": False, "object_store_memory": RAY_STORE_BYTES}
        try:
            ray.init(address=settings.address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, ValueError) as error:
            raise UsageError(f"launch.ray.address {settings.address}: {' '.join(str(error).split())}") from None
        tasks = []
        try:
            resources, at_once = _ray_resources(ray, launch, len(jobs))
            environment = {JOBS_AT_ONCE: str(at_once), **threads_environment(launch.threads or settings.cpus)}
            remote = ray.remote(_run_job).options(max_retries=settings.retries, **resources)
            tasks += [remote.remote(replace(job, retries=settings.retries), environment) for job in jobs]
            for task in tasks:
                yield _ray_end(ray, task)
        finally:
            for task in tasks:
                ray.cancel(task, force=True)
            ray.shutdown()


class _Submission:
    """A job as submitit takes it: `checkpoint` is called when the scheduler is about to end it."""

    def __init__(self, job: Job, environment: dict[str, str]) -> None:
        self.job = job
        self.environment = environment

    def __call__(self) -> Ended:
        return self.job(self.environment)

    def checkpoint(self) -> Any:
        import submitit

        interrupt([self.job])
        return submitit.helpers.DelayedSubmission(_Submission(replace(self.job), self.environment))


def _slurm_parameters(launch: Any) -> dict[str, Any]:
    settings = launch.slurm
    given = {name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint", "setup")}
    return {
        "name": "talon_bench",
        "timeout_min": settings.minutes,
        "cpus_per_task": settings.cpus,
        "gpus_per_node": None if launch.device == "cpu" else settings.gpus or None,
        "mem_gb": settings.memory_gb,
        "slurm_array_parallelism": settings.workers,
        "slurm_signal_delay_s": settings.notice_s,
        "slurm_additional_parameters": settings.options,
        **{f"slurm_{name}": value for name, value in given.items() if value},
    }


def _slurm_end(entry: Any) -> Ended:
    """The end of a submitted job; one that left no result was killed too often, or by its owner."""
    try:
        return entry.result()
    except Exception:
        logs = os.path.relpath(entry.paths.folder)
        return Ended(1, err=f"error: job {entry.job_id} ended without a result, its logs are in {logs}; {KEPT}\n")


def _ray_end(ray: Any, task: Any) -> Ended:
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        return Ended(1, err=f"error: lost ({type(error).__name__}); {KEPT}\n")


def _ray_resources(ray: Any, launch: Any, jobs: int) -> tuple[dict[str, int], int]:
    """What a task asks for, and how many jobs may meet on one machine; UsageError where no machine has as much."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = launch.ray.gpus
    if gpus is None:
        gpus = int(launch.device != "cpu" and any(machine.get("GPU") for machine in machines))
    asked = {"CPU": launch.ray.cpus, **({"GPU": gpus} if gpus else {})}
    room = max(min(int(machine.get(kind, 0) // number) for kind, number in asked.items()) for machine in machines)
    if room < 1:
        raise UsageError(
            f"launch.ray asks for {launch.ray.cpus} cores and {gpus} GPUs a job; no machine of the cluster has as many:"
            " set launch.ray.cpus and launch.ray.gpus"
        )
    return {"num_cpus": launch.ray.cpus, "num_gpus": gpus}, min(room, jobs)


def _run_job(job: Job, environment: dict[str, str]) -> Ended:
    return job(environment)
