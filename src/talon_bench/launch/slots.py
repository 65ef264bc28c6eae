"""Where the jobs of a sweep run on one machine: each on GPUs that no other job has meanwhile, or on a share of the cores."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from talon_bench.errors import UsageError
from talon_bench.launch.process import JOBS_AT_ONCE, Ended, Job
from talon_bench.paths import cache_dir
from talon_bench.schema import LaunchConfig

CPU_WORKERS = 2
"""Jobs at once on a CPU, where launch.joblib.workers says nothing."""
_POLL_S = 0.5


@dataclass(frozen=True)
class Slots:
    """`count` jobs at once; on a machine with GPUs each takes one of `groups`, lists of device ids that share none."""

    count: int
    groups: tuple[tuple[str, ...], ...] = ()
    threads: int | None = None

    def run(self, job: Job) -> Ended:
        """Run a job when there is room for it; several threads may call this at once."""
        shared = {JOBS_AT_ONCE: str(self.count), **threads_environment(self.threads)}
        if not self.groups:
            return job(shared)
        with self._group(job) as group:
            return job({**shared, "CUDA_VISIBLE_DEVICES": ",".join(group)})

    @contextlib.contextmanager
    def _group(self, job: Job) -> Iterator[tuple[str, ...]]:
        """GPUs of this job alone: also against other commands of the same user, by a lock file for each."""
        told = False
        while True:
            for group in self.groups:
                with contextlib.ExitStack() as held:
                    if all(_take(gpu, held) for gpu in group):
                        yield group
                        return
            if not told:
                job.tell("waits for a free GPU")
                told = True
            time.sleep(_POLL_S)


def find_slots(launch: LaunchConfig, jobs: int) -> Slots:
    """Slots for so many jobs under `launch.joblib`; UsageError where the machine cannot have as many as it asks for."""
    if launch.device.startswith("cuda:"):
        raise UsageError(
            f"launch.device is {launch.device}; with launch=joblib each job has a GPU of its own:"
            " leave launch.device out, and name the GPUs to use in CUDA_VISIBLE_DEVICES"
        )
    workers, each = launch.joblib.workers, launch.joblib.gpus
    gpus = [] if launch.device == "cpu" else visible_gpus()
    if not gpus:
        count = min(workers or CPU_WORKERS, jobs)
        return Slots(count, threads=launch.threads or max(len(os.sched_getaffinity(0)) // count, 1))
    room = len(gpus) // each
    if (workers or 1) > room:
        raise UsageError(
            f"launch.joblib asks for {workers or 1} jobs at once with {each} GPUs each;"
            f" this machine has {len(gpus)} GPUs:"
            f" set launch.joblib.workers to {room} or less, or launch.joblib.gpus"
        )
    groups = tuple(tuple(gpus[at * each : (at + 1) * each]) for at in range(room))
    return Slots(min(workers or room, jobs), groups, launch.threads)


def visible_gpus() -> list[str]:
    """Ids of the GPUs that torch can use, in the form of CUDA_VISIBLE_DEVICES."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def threads_environment(threads: int | None) -> dict[str, str]:
    """What makes torch start with so many CPU threads."""
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def _take(gpu: str, held: contextlib.ExitStack) -> bool:
    from filelock import FileLock, Timeout

    folder = cache_dir() / "gpus"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held.enter_context(FileLock(folder / f"{gpu}.lock", blocking=False))
    except Timeout:
        return False
    return True
