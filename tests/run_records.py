"""Run folders written by hand in the documented schema, with decode times that give round numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

TOKENS = 8  # emitted after the prefill, by every method on every prompt
LABELS = {
    "ar": "AR",
    "ar_again": "AR again",
    "eagle3": "EAGLE-3 (budget 60)",
    "talon": "TALON_x 50% & more",
    "medusa": "Medusa",
}
AR_MS, AGAIN_MS, FAST_MS, SLOW_MS = [80.0] * 6, [80.0, 84.0] * 3, [40.0] * 6, [50.0] * 6
MS = {"ar": AR_MS, "ar_again": AGAIN_MS, "eagle3": SLOW_MS, "talon": FAST_MS, "medusa": [20.0] * 6}

TURN_TYPES = {
    "output_ids": pa.list_(pa.int32()),
    "equals_ar": pa.bool_(),
    "diverged_at": pa.int32(),
    "ar_token": pa.int32(),
    "method_token": pa.int32(),
    "margin": pa.float64(),
    "error": pa.string(),
}


def policy(method: str) -> str:
    return "ar" if method.startswith("ar") else "talon"


def records(method: str, ms: list[float], differs: int | None) -> tuple[list[dict], list[dict]]:
    """AR has a round per token; others have four, accept one of three nodes, draft a quarter of the time."""
    turns, rounds = [], []
    plain = policy(method) == "ar"
    count = TOKENS if plain else TOKENS // 2
    share = (0.0, 0.95, 0.05) if plain else (0.25, 0.7, 0.05)
    for place, total in enumerate(ms):
        draft, verify, other = (total * part for part in share)
        key = {"prompt_id": f"p{place}", "turn": 0, "method": method}
        clock = {"draft_ms": draft / count, "verify_ms": verify / count, "other_ms": other / count}
        tree = {"widths": [], "path_ranks": [], "accepted": 0, "emitted": 1, "draft_passes": 0, "nodes": 1}
        if not plain:
            tree = {
                "widths": [2, 1],
                "path_ranks": [1],
                "accepted": 1,
                "emitted": 2,
                "draft_passes": 2,
                "nodes": 4,
            }
        rounds += [key | tree | clock | {"round": step, "context": 9 + step} for step in range(count)]
        equal = place != differs
        turns.append(
            key
            | {
                "category": "",
                "order": 0,
                "prompt_tokens": 9,
                "prompt_sha256": "",
                "stop": "cap",
                "load": 0.0,
            }
            | {"output_ids": list(range(TOKENS + 1)), "new_tokens": TOKENS + 1, "rounds": count}
            | {"draft_passes": tree["draft_passes"] * count, "prefill_ms": 30.0, "decode_ms": total}
            | {"draft_ms": draft, "verify_ms": verify, "other_ms": other, "status": "ok", "error": None}
            | {"equals_ar": equal, "diverged_at": None if equal else 3, "margin": None if equal else 0.0125}
            | {"ar_token": None if equal else 1, "method_token": None if equal else 2}
        )
    return turns, rounds


def write_run(
    folder: Path,
    ms: Mapping[str, list[float]] = MS,
    *,
    target: str = "smollm2-135m",
    dataset: str = "gsm8k",
    differs: int | None = None,
    busy: bool = False,
    source: str = "hub",
    temperature: float = 0.0,
    **info: object,
) -> Path:
    """A run folder; `ms` holds decode time per prompt by method, `differs` a prompt TALON gets wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [records(method, times, differs if method == "talon" else None) for method, times in ms.items()]
    turns = pd.DataFrame([row for part in parts for row in part[0]])
    columns = {name: pa.array(turns[name], type=TURN_TYPES.get(name), from_pandas=True) for name in turns}
    pq.write_table(pa.table(columns), folder / "turns.parquet")
    rounds = pd.DataFrame([row for part in parts for row in part[1]])
    lists = {name: pa.list_(pa.int16()) for name in ("widths", "path_ranks")}
    columns = {name: pa.array(rounds[name], type=lists.get(name)) for name in rounds}
    pq.write_table(pa.table(columns), folder / "rounds.parquet")
    provenance = {
        "talon_bench": "0.1.0",
        "git_commit": "0123456789abcdef",
        "python": "3.11.9",
        "torch": "2.13.0",
    }
    provenance |= {"transformers": "5.24.0", "cpu": "Test CPU", "cores": 4, "threads": 2, "gpu": None}
    provenance |= {"dtype": "float32", "load_before": 0.2, "load_after": 5.5, "busy": busy}
    methods = {
        name: {"policy": policy(name), "head": None, "lossless": name != "medusa", "label": LABELS[name]} for name in ms
    }
    methods.get("talon", {}).update(head="eagle3", budget=60, alpha=0.03)
    decode = {"temperature": temperature, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64, "seed": 0}
    content = {"schema": 1, "status": "complete", "config": {}, "provenance": provenance, "target": target}
    content |= {"heads": {"eagle3": {"name": "toy-eagle3", "sha256": "ab" * 32}}, "decode": decode}
    content |= {"dataset": {"name": dataset, "source": source}, "methods": methods}
    (folder / "run.json").write_text(json.dumps(content | info), encoding="utf-8")
    return folder


def alter_turns(folder: Path, **columns: object) -> None:
    """Overwrites columns of TALON's first turn."""
    table = pq.read_table(folder / "turns.parquet")
    rows = table.to_pylist()
    next(row for row in rows if row["method"] == "talon").update(columns)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "turns.parquet")
