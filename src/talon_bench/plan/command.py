"""`talon-bench plan`: what a command would run, without loading weights and without the network.

talon-bench plan +experiment=table1 plan.gpu=H200
talon-bench plan -m target=llama31_8b,qwen3_8b lineup=table1 plan.gpu=L40S
talon-bench plan +experiment=table2_embedded
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console

from talon_bench.commands import parse, usage
from talon_bench.plan.config import PlanConfig
from talon_bench.plan.jobs import expand
from talon_bench.plan.plan import make_plan
from talon_bench.plan.show import as_json, refusal, tables

WIDTH = 130
"""Columns where the output is no terminal."""


def main(arguments: Sequence[str]) -> int:
    """Print the plan; 0, or 2 when a job does not fit. Raises UsageError and Hydra's errors for a bad request."""
    request = parse("plan", PlanConfig, arguments)
    if request.help:
        print(usage("plan", __doc__ or "", PlanConfig))
        return 0
    plan = make_plan(expand(request.overrides, multirun=request.multirun), request.options)
    console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False)
    console.print(tables(plan))
    print(json.dumps(as_json(plan)), flush=True)
    if line := refusal(plan):
        print(f"error: {line}", file=sys.stderr, flush=True)
        return 2
    return 0
