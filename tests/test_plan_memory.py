"""A plan's memory against what a real run of the embedded default takes, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from talon_bench.compose import compose_config
from talon_bench.paths import cache_dir
from talon_bench.plan.checkpoints import local_folder
from talon_bench.plan.config import PlanConfig
from talon_bench.plan.memory import PROGRAM
from talon_bench.plan.plan import make_plan

CHILD = r"""
import json, resource, sys
import psutil
from talon_bench.compose import compose_config

config = compose_config(sys.argv[1:])
import transformers.models.llama.modeling_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from talon_bench import job
from talon_bench.bench import Bench

def resident():
    return psutil.Process().memory_info().rss

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = resident()
warm_up = Bench.warm_up

def from_here(self, *rest):
    open("/proc/self/clear_refs", "w").write("5")
    return warm_up(self, *rest)

Bench.warm_up = from_here
job.run(config)
print(json.dumps({"before": before, "peak": peak()}))
"""
"""The peak counts from the first decoded token on; what loading takes for a moment is read from a mapped file."""

CASES = {
    "bfloat16, fused and packed": ["target.dtype=bfloat16"],
    "float32, stock": ["target.dtype=float32"],
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_within_a_tenth_of_the_measured_peak(case: str, tmp_path: Path) -> None:
    overrides = [
        *CASES[case],
        "lineup=default",
        "dataset=mt_bench",
        "dataset.limit=1",
        "dataset.turns=1",
        "decode.max_new_tokens=8",
        "run.warmup_tokens=2",
        "launch.threads=1",
        f"run.root='{tmp_path}'",
    ]
    config = compose_config(overrides)
    if local_folder(config.target) is None:
        pytest.skip(f"the embedded target is not converted in {cache_dir().name}")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *overrides], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    memory = make_plan([(overrides, config)], PlanConfig(gpu="cpu")).jobs[0].memory
    assert memory.total == pytest.approx(measured["peak"], rel=0.1), (memory, measured)
    beyond = measured["peak"] - PROGRAM
    assert memory.total - memory.program == pytest.approx(beyond, rel=0.1), (memory, measured)
    assert 0.7 * PROGRAM < measured["before"] < PROGRAM, "the program, before it has read a tokenizer or made a table"
