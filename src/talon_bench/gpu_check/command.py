"""`talon-bench gpu-check`: try the engine on a GPU, and measure what rounds of an 8B target cost there, in minutes.

talon-bench gpu-check
talon-bench gpu-check gpu_check.seconds=240 gpu_check.out=results/local/h200.json launch.device=cuda:1
talon-bench gpu-check launch.device=cpu

No network is used once the embedded target is in the cache. Each line is ok, a warning or a fault; results go to one JSON file,
which `python -m analysis.gpu_check FILE` turns into tables. Exit status 1 with any fault, 2 for a bad request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from talon_bench.commands import parse, usage
from talon_bench.compose import compose_config
from talon_bench.errors import UsageError
from talon_bench.gpu_check.config import GpuCheckConfig

WORD = "gpu-check"
EMBEDDED = ("lineup=lossless", "+method@lineup.methods.ar_eager=ar_eager")
"""Every method, and AR launched kernel by kernel, on the embedded default; overrides come after and win."""


def main(arguments: Sequence[str]) -> int:
    """Run the stages, print their findings, write the file. Raises UsageError and Hydra's errors for a bad request."""
    request = parse(WORD, GpuCheckConfig, arguments)
    if request.help:
        print(usage(WORD, __doc__ or "", GpuCheckConfig))
        return 0
    if request.multirun:
        raise UsageError("gpu-check tries one device; leave -m out")
    options: GpuCheckConfig = request.options
    embedded = compose_config([*EMBEDDED, *request.overrides])
    shaped = compose_config([f"target={options.shape}", "lineup=table1"])
    if shaped.target.architecture is None or "eagle3" not in shaped.head:
        raise UsageError(
            f"gpu_check.shape={options.shape} has no target.architecture or no EAGLE-3 head in conf/; use llama31_8b"
        )
    # torch and transformers take seconds to import; a bad request should not wait for them.
    import torch

    from talon_bench.gpu_check.check import STAGES, Check
    from talon_bench.gpu_check.context import Context
    from talon_bench.gpu_check.record import CheckRecord
    from talon_bench.gpu_check.scale import FULL, TINY
    from talon_bench.loading import resolve_device

    device = resolve_device(embedded.launch.device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        device = torch.device("cuda", device.index or 0)
    embedded.launch = replace(embedded.launch, device=str(device))
    if embedded.launch.threads:
        torch.set_num_threads(embedded.launch.threads)
    scale = FULL if options.scale == "full" or (options.scale == "auto" and on_gpu) else TINY
    record = CheckRecord(
        Path(options.out).expanduser(),
        gpu=torch.cuda.get_device_name(device) if on_gpu else None,
        scale=scale.name,
        seconds=options.seconds,
        shape=shaped.target.name,
        order=[stage.name for stage in STAGES],
    )
    if not on_gpu:
        print("note: no GPU: nothing is recorded, and no number of this check is a GPU's", flush=True)
    if scale is TINY:
        print(f"note: tiny shapes in the place of {shaped.target.name}'s", flush=True)
    verdict = Check(Context(embedded, shaped, scale, device), record, options.seconds, _say).run()
    stages = {name: stage["status"] for name, stage in record.stages.items()}
    print(json.dumps({"command": "gpu-check", "out": str(record.path), "verdict": verdict, "stages": stages}))
    return int(verdict == "fault")


def _say(line: str) -> None:
    print(line, flush=True)
