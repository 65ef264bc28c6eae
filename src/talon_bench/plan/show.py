"""A plan for people, as tables, and for scripts, as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from talon_bench.plan.devices import GIB
from talon_bench.plan.plan import Download, Job, Plan


def tables(plan: Plan) -> Group:
    """Jobs, memory by target, downloads, then what the numbers rest on."""
    lines = [f"- {line}" for line in (*_terms(plan), *_notes(plan), *plan.assumptions)]
    return Group(_jobs(plan), _memory(plan), _downloads(plan), Text("\n".join(lines)))


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as one object of schema 1; bytes and seconds are plain numbers."""
    device = plan.device
    return {
        "schema": 1,
        "command": "plan",
        "device": {"name": device.name, "memory": device.memory, "bandwidth": device.bandwidth},
        "fits": not plan.refused,
        "seconds": plan.seconds,
        "download_bytes": sum(one.bytes or 0 for one in plan.downloads if not one.cached),
        "jobs": [_job(job, plan) for job in plan.jobs],
        "downloads": [asdict(download) for download in plan.downloads],
        "assumptions": plan.assumptions,
    }


def refusal(plan: Plan) -> str | None:
    """One line when a job does not fit: which, what it needs, what there is, what to do."""
    if not plan.refused:
        return None
    job = max(plan.refused, key=lambda job: job.memory.total)
    others = len(plan.refused) - 1
    more = f" (and {others} more of {len(plan.jobs)} jobs)" if others else ""
    fix = "choose a smaller target or dtype"
    if plan.device.kind == "cuda":
        more_gpus = max(2, job.gpus * 2)
        fix = f"spread it over launch.shard={more_gpus} GPUs, or choose a larger one with plan.gpu"
    each = " on each GPU" if job.gpus > 1 else ""
    return (
        f"job {job.number}, {job.name}{more}, needs {gib(job.memory.total)} GiB{each}, {plan.device.name} has"
        f" {gib(plan.device.memory)} GiB; {fix}"
    )


def gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size < GIB else f"{size / GIB:.1f}"


def duration(seconds: float) -> str:
    """In the unit that fits: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _jobs(plan: Plan) -> Table:
    table = Table(title=f"{len(plan.jobs)} jobs on {plan.device.name}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("job", justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("data set", no_wrap=True)
    for heading in ("T", "prompts", "answers", "GPUs", "GiB", "host GiB", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for job in plan.jobs:
        table.add_row(
            str(job.number),
            job.target,
            job.dataset,
            f"{job.temperature:g}",
            str(job.prompts.count),
            str(job.prompts.answers),
            str(job.gpus) if job.gpus else "",
            gib(job.memory.total) + ("" if job.memory.total <= plan.device.memory else " !"),
            gib(job.host) if job.host else "",
            duration(sum(job.seconds.values())),
        )
    table.caption = f"together at most {duration(plan.seconds)}; ! does not fit {gib(plan.device.memory)} GiB"
    table.caption_justify = "left"
    return table


def _memory(plan: Plan) -> Table:
    """The largest job of each target, part by part."""
    largest: dict[str, Job] = {}
    for job in plan.jobs:
        if job.target not in largest or job.memory.total > largest[job.target].memory.total:
            largest[job.target] = job
    parts = list(asdict(plan.jobs[0].memory))
    table = Table(title="memory of each target's largest job, GiB", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("target", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for heading in ("positions", *(part.replace("_", " ") for part in parts), "total"):
        table.add_column(heading, justify="right")
    for job in largest.values():
        sizes = asdict(job.memory)
        row = [gib(sizes[part]) if sizes[part] else "0" for part in parts]
        table.add_row(job.target, job.dtype, str(job.work.positions), *row, gib(job.memory.total))
    return table


def _downloads(plan: Plan) -> Table:
    missing = sum(one.bytes or 0 for one in plan.downloads if not one.cached)
    table = Table(title=f"{missing / 1e9:.1f} GB to download", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("what", "name", "from"):
        table.add_column(heading, overflow="fold")
    table.add_column("GB", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for one in plan.downloads:
        size = "?" if one.bytes is None else f"{one.bytes / 1e9:.2f}"
        table.add_row(one.kind, one.name, one.source, size, _state(one))
    return table


def _state(download: Download) -> str:
    if download.cached:
        return "here"
    return "to accept, to fetch" if download.gated else "to fetch"


def _terms(plan: Plan) -> list[str]:
    gated = [one for one in plan.downloads if one.gated and not one.cached]
    return [
        f"gated: {one.source} ({one.licence or 'its own licence'}): accept the licence on its hub page and log in"
        for one in gated
    ]


def _notes(plan: Plan) -> list[str]:
    """What concerns some jobs, each with their numbers: methods, notes, and methods for which a target has no head."""
    jobs_by_note: dict[str, list[int]] = {}
    for job in plan.jobs:
        jobs_by_note.setdefault(f"methods: {', '.join(job.methods)}", []).append(job.number)
    for job in plan.jobs:
        for note in job.notes:
            jobs_by_note.setdefault(note, []).append(job.number)
        if job.left_out:
            missing = f"missing: {job.target} has no head for {', '.join(job.left_out)}: left out of its jobs"
            jobs_by_note.setdefault(missing, []).append(job.number)
    return [f"{note} (jobs {_ranges(numbers)})" for note, numbers in jobs_by_note.items()]


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as 1-6, 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _job(job: Job, plan: Plan) -> dict[str, Any]:
    return {
        **asdict(job),
        "overrides": [override for override in job.overrides if "/" not in override.partition("=")[2]],
        "memory_total": job.memory.total,
        "fits": job.memory.total <= plan.device.memory,
    }
