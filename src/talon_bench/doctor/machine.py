"""The device and who else uses it; memory and disk against what the plan says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psutil
import torch

from talon_bench import provenance
from talon_bench.doctor.finding import Finding, fault, ok, warning
from talon_bench.loading import resolve_device
from talon_bench.paths import cache_dir
from talon_bench.plan.plan import Plan
from talon_bench.plan.show import gib

PATIENCE_S = 10


def device_and_load(wanted: str) -> list[Finding]:
    """The device of `launch.device`, other processes on it, and other work on the CPU."""
    device = resolve_device(wanted)
    facts = provenance.describe(device, torch.float32)
    findings = []
    if device.type == "cuda":
        findings.append(ok("device", f"{facts['gpu']}"))
        findings.append(_gpu_processes(device, facts["gpu_processes"]))
    else:
        findings.append(ok("device", f"CPU, {facts['cpu']}, {facts['threads']} threads of {facts['cores']} cores"))
    share = f"{facts['cpu_used_by_others']:.0%} of the cores used by others"
    if facts["busy"]:
        findings.append(
            warning("load", share, f"at most {provenance.BUSY_SHARE:.0%}", "stop the other work: times will be flagged")
        )
    else:
        findings.append(ok("load", share))
    return findings


def memory_and_disk(plan: Plan, wanted: str) -> list[Finding]:
    """Free memory of the device and free disk of the caches against the plan's largest job and its downloads."""
    device = resolve_device(wanted)
    need = max(job.memory.total for job in plan.jobs)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    found = f"{gib(free)} GiB free, {gib(need)} GiB needed"
    short = "target.dtype=bfloat16, a smaller target, or another device"
    findings = [ok("memory", found) if free >= need else fault("memory", found, "as much free as needed", short)]
    fetch = sum(one.bytes or 0 for one in plan.downloads if not one.cached and one.kind != "data set")
    room = shutil.disk_usage(_existing(_hub_cache() if fetch else cache_dir())).free
    found = f"{room / 1e9:.1f} GB free, {fetch / 1e9:.1f} GB to fetch"
    if room < fetch:
        findings.append(fault("disk", found, "room for the download", "free some, or set HF_HOME to a larger disk"))
    else:
        findings.append(ok("disk", found))
    return findings


def _gpu_processes(device: torch.device, counted: int | None) -> Finding:
    """Other processes on the GPU: by the driver's tool where it is there, else as torch counts them."""
    others = _others(device.index or 0)
    if others is None and counted is None:
        return warning("GPU processes", "unknown", "none but this", "install nvidia-ml-py, or look with nvidia-smi")
    if others:
        used = ", ".join(f"{name} {megabytes} MiB" for name, megabytes in others)
        return warning(
            "GPU processes", f"{len(others)} others ({used})", "none but this", "stop them, or take another GPU"
        )
    if others is None and counted:
        return warning("GPU processes", f"{counted} others", "none but this", "stop them, or take another GPU")
    return ok("GPU processes", "none but this")


def _others(index: int) -> list[tuple[str, str]] | None:
    """(program, MiB) of other processes that compute on the GPU; None where nvidia-smi is not there or fails."""
    query = "--query-compute-apps=pid,process_name,used_memory"
    rows = nvidia_smi(f"--id={index}", query, "--format=csv,noheader,nounits")
    if rows is None:
        return None
    own = str(psutil.Process().pid)
    return [(Path(row[1]).name, row[2]) for row in rows if len(row) == 3 and row[0] != own]


def nvidia_smi(*options: str) -> list[list[str]] | None:
    """The cells of each line that the driver's tool prints as CSV; None where it is not there or fails."""
    try:
        done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
