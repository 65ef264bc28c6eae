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


def records(
    method: str, ms: list[float], differs: int | None, counts: list[int] | None = None, passes: list[int] | None = None
) -> tuple[list[dict], list[dict]]:
    """AR has a round per token; others have four, accept one of three nodes, draft a quarter of the time.

    `counts` and `passes` give other numbers of rounds (3 to 8) and of draft passes a round, prompt by prompt.
    """
    turns, rounds = [], []
    plain = policy(method) == "ar"
    share = (0.0, 0.95, 0.05) if plain else (0.25, 0.7, 0.05)
    for place, total in enumerate(ms):
        count = TOKENS if plain else counts[place] if counts else TOKENS // 2
        drafted = 0 if plain else passes[place] if passes else 2
        draft, verify, other = (total * part for part in share)
        key = {"prompt_id": f"p{place}", "turn": 0, "method": method}
        clock = {"draft_ms": draft / count, "verify_ms": verify / count, "other_ms": other / count}
        tree = {"widths": [] if plain else [2, 1], "draft_passes": drafted, "nodes": 1 if plain else 4}
        for step in range(count):
            emitted = TOKENS // count + (step < TOKENS % count)
            path = {"accepted": emitted - 1, "emitted": emitted, "path_ranks": [1, 0][: emitted - 1]}
            rounds.append(key | tree | path | clock | {"round": step, "context": 9 + step})
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
            | {"draft_passes": drafted * count, "prefill_ms": 30.0, "decode_ms": total}
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
    counts: Mapping[str, list[int]] | None = None,
    passes: Mapping[str, list[int]] | None = None,
    settings: Mapping[str, dict] | None = None,
    **info: object,
) -> Path:
    """A run folder; `ms` holds decode time per prompt by method, `differs` a prompt TALON gets wrong.

    `counts` and `passes` are those of `records`, by method; `settings` adds to a method's settings in run.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        records(
            *(method, times, differs if method == "talon" else None),
            *((counts or {}).get(method), (passes or {}).get(method)),
        )
        for method, times in ms.items()
    ]
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
        name: {"policy": policy(name), "head": None, "lossless": name != "medusa", "label": LABELS.get(name, name)}
        for name in ms
    }
    methods.get("talon", {}).update(head="eagle3", budget=60, alpha=0.03)
    for name, own in (settings or {}).items():
        methods[name].update(own)
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
