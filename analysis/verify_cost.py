"""What a verification costs by tree size: one target pass over 1 to 100 query tokens behind a fixed context.

    python -m analysis.verify_cost --out results/local/verify_cost.json
    python -m analysis.verify_cost target.dtype=float32 --context 500

The curve explains where speculation pays on a machine: a budget is worth its nodes while the curve is flat.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.command import guarded
from talon_bench import provenance
from talon_bench.compose import compose_config
from talon_bench.gpu_check.costs import verification
from talon_bench.gpu_check.timing import interleaved
from talon_bench.loading import load_target
from talon_bench.target import Target

TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 60, 80, 100)


def cost_rows(target: Target, context: int, repeats: int) -> list[dict]:
    """One row per tree size: tokens and the median, 10th and 90th percentile of the pass, in ms."""
    target.allocate(context + max(TOKENS))
    vocabulary = target.shape.vocab_size
    target.prefill([token % vocabulary for token in range(context)])
    times = interleaved({tokens: verification(target, tokens) for tokens in TOKENS}, repeats, target.device)
    rows = []
    for tokens, spent in times.items():
        low, median, high = np.percentile(spent.device, [10, 50, 90])
        rows.append({"tokens": tokens, "ms_median": median, "ms_p10": low, "ms_p90": high})
    return rows


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.verify_cost", description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="Hydra overrides of target and launch")
    parser.add_argument("--out", type=Path, default=Path("results/local/verify_cost.json"))
    parser.add_argument("--context", type=int, default=200, help="committed tokens before the pass")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_intermixed_args(argv)
    config = compose_config(arguments.overrides)
    target = load_target(config.target, config.launch).target
    machine = provenance.describe(target.device, target.dtype)
    rows = cost_rows(target, arguments.context, arguments.repeats)
    result = {
        "target": config.target.name,
        "dtype": machine["dtype"],
        "threads": machine["threads"],
        "context": arguments.context,
        "rows": rows,
        "provenance": {**machine, "load_after": provenance.load(), "finished": provenance.now()},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        print(
            f"{row['tokens']:4d} tokens  {row['ms_median']:7.1f} ms  {row['ms_median'] / rows[0]['ms_median']:.2f} x one"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
