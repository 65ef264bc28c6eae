"""Time and memory from the records of a large sweep to the main table: generated rounds, one JSON line.

    python -m benchmarks.aggregate                       # ten million rounds in six runs
    python -m benchmarks.aggregate --rounds 100000 --runs 2

The records are written to a temporary folder, then read by a process of its own, so that `peak_rss_mib` holds
no trace of their making. The status is 1 where the result lies beyond `BOUNDS`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from talon_bench.records import ROUNDS, SCHEMA, TURNS
from talon_bench.report.load import load_runs
from talon_bench.report.tables import main_table

TOKENS = 512
"""Emitted by every method on every prompt."""
METHODS = {"ar": 1, "ar_again": 1, "eagle2": 3, "eagle3": 4, "talon": 4}
"""Tokens that each method emits in a full round."""
PASSES = {"ar": 0, "ar_again": 0, "eagle2": 6, "eagle3": 8, "talon": 4}
LAYERS = np.array([10, 20, 15, 10, 4], dtype=np.int16)
PROMPTS_A_BLOCK = 200
SEED = 0
BOUNDS = {"seconds": 60, "peak_rss_mib": 4096}
"""The most that ten million rounds may take on a machine of two cores."""


def write_runs(root: Path, rounds: int, runs: int) -> int:
    """Writes `runs` run folders of about `rounds` rows together; returns the rows in fact written."""
    a_prompt = sum(-(-TOKENS // step) for step in METHODS.values())
    prompts = max(1, round(rounds / runs / a_prompt))
    return sum(_write_run(root / f"run{place}", f"set{place}", prompts, SEED + place) for place in range(runs))


def measure(root: Path) -> dict:
    """Reads every run below `root` and builds the main table: seconds of each step, and peak memory so far."""
    start = time.perf_counter()
    runs = load_runs(root)
    loaded = time.perf_counter()
    table = main_table(runs)
    done = time.perf_counter()
    return {
        "turns": sum(len(run.turns) for run in runs),
        "cells": int(table.notna().to_numpy().sum()),
        "load_seconds": round(loaded - start, 2),
        "table_seconds": round(done - loaded, 2),
        "seconds": round(done - start, 2),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def in_a_process_of_its_own(root: Path) -> dict:
    """`measure`, whose peak memory then holds no trace of this process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (root,))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregate", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=6)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        rows = write_runs(Path(folder), arguments.rounds, arguments.runs)
        result = in_a_process_of_its_own(Path(folder))
    print(json.dumps({"rounds": rows, "runs": arguments.runs, **result}))
    beyond = [name for name, bound in BOUNDS.items() if result[name] > bound]
    for name in beyond:
        print(f"{name} is {result[name]}, expected at most {BOUNDS[name]}", file=sys.stderr)
    return 1 if beyond else 0


def _write_run(folder: Path, dataset: str, prompts: int, seed: int) -> int:
    """One run in the documented schema, written block by block as it would not fit into memory otherwise."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    rows = 0
    with (
        pq.ParquetWriter(folder / "turns.parquet", TURNS, compression="zstd") as turns_file,
        pq.ParquetWriter(folder / "rounds.parquet", ROUNDS, compression="zstd") as rounds_file,
    ):
        for first in range(0, prompts, PROMPTS_A_BLOCK):
            ids = [f"p{number:06d}" for number in range(first, min(first + PROMPTS_A_BLOCK, prompts))]
            for method in METHODS:
                rounds = _rounds(ids, method, rng)
                turns_file.write_table(_turns(ids, method, rounds))
                rounds_file.write_table(rounds)
                rows += len(rounds)
    methods = {
        name: {"policy": "ar" if step == 1 else "talon", "head": None, "lossless": True, "label": name}
        for name, step in METHODS.items()
    }
    decode = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": TOKENS + 1, "seed": 0}
    info = {"schema": SCHEMA, "status": "complete", "config": {}, "provenance": {}, "target": "generated", "heads": {}}
    info |= {"decode": decode, "methods": methods, "dataset": {"name": dataset, "source": "generated"}}
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    return rows


def _rounds(ids: list[str], method: str, rng: np.random.Generator) -> pa.Table:
    """Every round of one method on some prompts, all of them full but the last of a prompt."""
    step = METHODS[method]
    each = -(-TOKENS // step)
    count = each * len(ids)
    emitted = np.full((len(ids), each), step, dtype=np.int16)
    emitted[:, -1] = TOKENS - step * (each - 1)
    layers, accepted = (0, 0) if step == 1 else (len(LAYERS), step - 1)
    verify = rng.gamma(50.0, 0.4, count) * (1 if step == 1 else 1.5)
    columns = {
        "prompt_id": np.repeat(ids, each),
        "turn": np.zeros(count, dtype=np.int16),
        "method": np.full(count, method),
        "round": np.tile(np.arange(each, dtype=np.int32), len(ids)),
        "context": np.tile(np.arange(100, 100 + step * each, step, dtype=np.int32), len(ids)),
        "draft_passes": np.full(count, PASSES[method], dtype=np.int16),
        "nodes": np.full(count, 1 + LAYERS[:layers].sum(), dtype=np.int16),
        "widths": _lists(np.tile(LAYERS[:layers], count), layers, count),
        "accepted": np.full(count, accepted, dtype=np.int16),
        "emitted": emitted.ravel(),
        "path_ranks": _lists(rng.integers(0, 4, accepted * count, dtype=np.int16), accepted, count),
        "draft_ms": PASSES[method] * rng.gamma(20.0, 0.05, count),
        "verify_ms": verify,
        "other_ms": rng.gamma(4.0, 0.1, count),
    }
    return pa.table({name: pa.array(column) for name, column in columns.items()}).cast(ROUNDS)


def _turns(ids: list[str], method: str, rounds: pa.Table) -> pa.Table:
    """The turns of `_rounds`, times and passes being its sums."""
    times = ["draft_ms", "verify_ms", "other_ms"]
    frame = rounds.select(["prompt_id", "draft_passes", *times]).to_pandas().groupby("prompt_id").sum().reset_index()
    frame["decode_ms"] = frame[times].sum(axis=1)
    frame["rounds"] = len(rounds) // len(ids)
    fixed = {"category": "", "turn": 0, "method": method, "order": 0, "prompt_tokens": 100, "prompt_sha256": ""}
    fixed |= {"new_tokens": TOKENS + 1, "stop": "cap", "prefill_ms": 30.0, "load": 0.0, "status": "ok", "error": None}
    fixed |= {"equals_ar": True, "diverged_at": None, "ar_token": None, "method_token": None, "margin": None}
    frame = frame.assign(**fixed)
    frame["output_ids"] = pd.Series([list(range(TOKENS + 1))] * len(frame))
    return pa.Table.from_pandas(frame[TURNS.names], schema=TURNS, preserve_index=False)


def _lists(values: np.ndarray, length: int, count: int) -> pa.Array:
    """A list column of `count` lists of one length."""
    offsets = np.arange(0, length * count + 1, length, dtype=np.int32) if length else np.zeros(count + 1, np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.int16)))


if __name__ == "__main__":
    raise SystemExit(main())
