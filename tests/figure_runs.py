"""Hand-made runs for figures: every round is spelled out, so that what is drawn can be worked out on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from talon_bench.report.load import RunData

Round = tuple[list[int], list[int]]
"""(nodes in each layer, rank in its layer of each accepted node)"""

AR = {"policy": "ar", "head": None, "label": "AR", "lossless": True}
TALON = {"policy": "talon", "head": "eagle3", "label": "TALON", "lossless": True, "budget": 6, "alpha": 0.03}
EAGLE = {"policy": "eagle", "head": "eagle3", "label": "EAGLE-3", "lossless": True, "budget": 6, "depth": 3}
MS = {"draft": 2.0, "verify": 10.0, "other": 1.0}  # per draft pass, per verification, per verification

PLAIN: Round = ([], [])
DEEP: Round = ([3, 2, 1], [0, 1, 0])
HALF: Round = ([3, 2], [2])
MISS: Round = ([3, 2], [])


def make_run(
    answers: Mapping[str, Mapping[str, Sequence[Round]]],
    settings: Mapping[str, Mapping] | None = None,
    categories: Mapping[str, str] | None = None,
    *,
    target: str = "toy",
    dataset: str = "mt_bench",
    path: str = "run",
    verify_ms: Mapping[str, float] | None = None,
) -> RunData:
    """`answers` holds the rounds by method and prompt. Draft passes are the layers of a tree; a round emits its path and one.

    `settings` are the methods' in run.json (AR, TALON and EAGLE-3 are known), `categories` the prompts', `verify_ms` a
    method's time of a verification instead of that in `MS`.
    """
    turns, rounds = [], []
    for method, prompts in answers.items():
        verify = (verify_ms or {}).get(method, MS["verify"])
        for prompt, steps in prompts.items():
            key = {"prompt_id": prompt, "turn": 0, "method": method}
            for number, (widths, ranks) in enumerate(steps):
                times = {"draft_ms": MS["draft"] * len(widths), "verify_ms": verify, "other_ms": MS["other"]}
                tree = {"draft_passes": len(widths), "nodes": 1 + sum(widths), "widths": widths}
                path_taken = {"accepted": len(ranks), "emitted": len(ranks) + 1, "path_ranks": ranks}
                rounds.append(key | {"round": number, "context": 9 + number} | tree | path_taken | times)
            own = rounds[len(rounds) - len(steps) :]
            sums = {
                name: sum(row[name] for row in own) for name in ("draft_passes", "draft_ms", "verify_ms", "other_ms")
            }
            turn = {"category": (categories or {}).get(prompt, ""), "rounds": len(steps), "prefill_ms": 5.0}
            turn |= {
                "new_tokens": 1 + sum(row["emitted"] for row in own),
                "status": "ok",
                "equals_ar": True,
                "margin": None,
            }
            decode = sums["draft_ms"] + sums["verify_ms"] + sums["other_ms"]
            turns.append(key | turn | sums | {"decode_ms": decode})
    frame = pd.DataFrame(rounds)
    for column in ("widths", "path_ranks"):
        kind = pa.list_(pa.int16())
        frame[column] = pd.Series(pd.arrays.ArrowExtensionArray(pa.array(frame[column], type=kind)))
    known = {"ar": AR, "talon": TALON, "eagle3": EAGLE} | dict(settings or {})
    machine = {"cpu": "Test CPU", "cores": 4, "threads": 2, "gpu": None, "dtype": "float32", "busy": False}
    info = {
        "target": target,
        "dataset": {"name": dataset, "source": "hub"},
        "methods": {method: dict(known[method]) for method in answers},
        "decode": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64, "seed": 0},
        "provenance": machine | {"talon_bench": "0.1.0", "torch": "2.13.0", "transformers": "5", "python": "3.11"},
        "heads": {},
    }
    return RunData(Path(path), info, pd.DataFrame(turns), frame)


def two_prompts(**options: object) -> RunData:
    """AR, EAGLE-3 and TALON on prompts a (math) and b (coding).

    EAGLE-3 has 4 verifications: a deep hit and a miss on a, two half hits on b. TALON has 3: a deep hit on a; a half hit
    and a miss on b.
    """
    answers = {
        "ar": {"a": [PLAIN] * 5, "b": [PLAIN] * 3},
        "eagle3": {"a": [DEEP, MISS], "b": [HALF, HALF]},
        "talon": {"a": [DEEP], "b": [HALF, MISS]},
    }
    return make_run(answers, categories={"a": "math", "b": "coding"}, **options)


def sweep_run(
    field: str, values: Sequence[float], *, base: str = "talon", fixed: str | None = None, **options: object
) -> RunData:
    """A sweep: value number i of `field` hits deep in i of the rounds of each prompt, and has two other rounds.

    `fixed` is a method of the line-up that the sweep leaves alone.
    """
    names = [f"{base}[{field}={value}]" for value in values]
    settings = {
        name: TALON | {field: value, "label": f"{base}, {field} {value}"}
        for name, value in zip(names, values, strict=True)
    }
    answers: dict = {"ar": {"a": [PLAIN] * 4, "b": [PLAIN] * 8}}
    for hits, name in enumerate(names):
        answers[name] = {"a": [DEEP] * hits + [HALF] * 2, "b": [DEEP] * hits + [HALF, MISS]}
    if fixed is not None:
        settings[fixed] = TALON | {"label": fixed}
        answers[fixed] = {"a": [HALF], "b": [HALF]}
    return make_run(answers, settings, **options)
