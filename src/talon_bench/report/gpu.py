"""Tables of `talon-bench gpu-check`: losslessness, costs of passes and rounds, and what they make of the published MAT.

A check is the JSON object that the program writes (docs/gpu-check.md). Table functions hold plain numbers; a stage that a check
has not reached has no rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from talon_bench.errors import UsageError
from talon_bench.gpu_check.record import SCHEMA
from talon_bench.metrics import BASELINE, EAGER
from talon_bench.report.paper import NAMES
from talon_bench.report.render import interval_text, number, numbers_and_text
from talon_bench.stats import Estimate, ratio_of_sums

Check = dict[str, Any]

LED = "led"
PHASES = {"draft ms": "draft_ms", "verify ms": "verify_ms", "host and other ms": "other_ms"}
SOURCE = "TALON"
"""The paper whose MAT is projected, at temperature 0."""

RANDOM_NOTE = (
    "random weights of the published sizes: times are those of real checkpoints up to what the tree's form costs, tokens mean"
    " nothing. share: bytes that a pass must read / (time x bandwidth that a sum reached)."
)
INTERVAL_NOTE = "[low, high]: 95 % bootstrap interval, of medians over repetitions, of sums over random prompts."
ROUND_NOTE = (
    "led: the target is made to accept the path to depth 5, as trained heads do; as they come: a random head's tokens are not"
    " accepted. Medians of a round: draft and verify of the device, host and other what is left of the wall time."
)
PROJECTED_NOTE = (
    "projected, not measured: published MAT / time of a led round here. TALON's draft passes are those of a random head whose"
    " sharpness was chosen for about 7. A paper's speedup is over AR launched kernel by kernel."
)


def load_checks(files: Sequence[Path]) -> list[Check]:
    """The checks in these files; UsageError for a file that is none."""
    checks = []
    for file in files:
        try:
            check = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            check = None
        if not isinstance(check, dict) or check.get("command") != "gpu-check" or check.get("schema") != SCHEMA:
            raise UsageError(f"{file} is no result of talon-bench gpu-check (schema {SCHEMA}); give the file it wrote")
        checks.append(check)
    return checks


def device_of(check: Check) -> str:
    """What a check's rows are called: the GPU's name, or that it is none."""
    scale = "" if check["scale"] == "full" else f", {check['scale']} shapes"
    return (check["gpu"] or "CPU, not a GPU") + scale


def lossless_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per check x dtype x method: answers equal to AR's, the largest margin of a difference, speed."""
    rows = []
    for check in checks:
        for dtype in ("float32", "bfloat16"):
            for method, cells in _results(check, f"lossless {dtype}").get("methods", {}).items():
                row = {"device": device_of(check), "dtype": dtype, "method": method}
                row |= {"answers": cells["compared_prompts"], "equal": cells["equal_prompts"]}
                row |= {"largest margin": cells["worst_margin"], "MAT": cells["mat"], "eta": cells["eta"]}
                rows.append(row | {"tokens/s": cells["tokens_per_second"]})
    return pd.DataFrame(rows)


def verify_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per check x context x form x nodes: the pass in ms, in passes over one node, the host's part."""
    rows = []
    for check in checks:
        found = _results(check, "verify").get("passes", [])
        plain = {row["context"]: row["ms"] for row in found if (row["form"], row["nodes"]) == ("static", 1)}
        for row in found:
            cells = {"device": device_of(check), "context": row["context"], "form": row["form"], "nodes": row["nodes"]}
            rows.append(cells | _ms(row) | {"x one": row["ms"] / plain[row["context"]], "share": row["share"]})
    return pd.DataFrame(rows)


def draft_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per check x context x kind of draft pass x width."""
    return pd.DataFrame(
        {
            "device": device_of(check),
            **{name: row[name] for name in ("context", "kind", "width")},
            **_ms(row),
            "share": row["share"],
        }
        for check in checks
        for row in _results(check, "draft").get("passes", [])
    )


def ideas_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per check x form of attention or of the output projection x nodes."""
    rows = []
    for check in checks:
        for idea, found in _results(check, "ideas").items():
            for row in found["rows"]:
                cells = {"device": device_of(check), "idea": idea, "form": row.get("form") or row.get("attention")}
                rows.append(
                    cells | {"nodes": row.get("nodes") or found["nodes"], **_ms(row), "error": row.get("error")}
                )
    return pd.DataFrame(rows)


def round_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row per check x kind of round x method: draft passes, phases, the whole round."""
    rows = []
    for check in checks:
        for kind, found in _results(check, "rounds").items():
            shares = {row["method"]: row["share"] for row in found.get("roofline", []) if row["phase"] == "decode"}
            for cells in found.get("methods", {}).values():
                row = {"device": device_of(check), "rounds": kind, "method": cells["label"], "MAT": cells["mat"]}
                row |= {"draft passes": cells["draft_passes"]}
                row |= {heading: cells[phase] for heading, phase in PHASES.items()}
                row |= {"ms": cells["round_ms"], "ms low": cells["round_ms_low"], "ms high": cells["round_ms_high"]}
                rows.append(row | {"share": shares.get(cells["label"])})
    return pd.DataFrame(rows)


def projected_table(checks: Sequence[Check], published: pd.DataFrame) -> pd.DataFrame:
    """One row per check x method x data set: published MAT over the time of a led round, against both forms of AR.

    `published` as in `report.paper.load_published`. AR's own rows, of data set "any", have the speed that was measured.
    """
    rows = []
    for check in checks:
        found = _results(check, "rounds").get(LED, {})
        turns = pd.DataFrame(found.get("turns", []))
        for method, cells in found.get("methods", {}).items():
            own = found["settings"][method]
            for cell in _published(published, check["shape"], own):
                row = {"device": device_of(check), "target": check["shape"], "method": cells["label"], **cell}
                row |= {"draft passes": cells["draft_passes"]}
                row |= _estimate("projected tokens/s", _rate(turns, method), 1e3 * cell["MAT"])
                for name, other in (("projected over AR", BASELINE), ("projected over AR eager", EAGER)):
                    row |= _estimate(name, _ratio(turns, other, method), cell["MAT"])
                rows.append(row)
    return pd.DataFrame(rows)


def write_checks(checks: Sequence[Check], published: pd.DataFrame, folder: Path) -> list[Path]:
    """Write every table that has rows as CSV, Markdown and LaTeX below `folder`; UsageError where none has any."""
    where = [_origin(check) for check in checks]
    tables = (
        ("gpu_lossless", lossless_table(checks), [], "Answers equal to autoregressive decoding's, on the device"),
        ("gpu_verify", verify_table(checks), [RANDOM_NOTE, INTERVAL_NOTE], "Cost of a verification by tree size"),
        ("gpu_draft", draft_table(checks), [RANDOM_NOTE, INTERVAL_NOTE], "Cost of a draft pass by width"),
        (
            "gpu_ideas",
            ideas_table(checks),
            [RANDOM_NOTE, INTERVAL_NOTE],
            "Kernels of attention and forms of the logits",
        ),
        ("gpu_rounds", round_table(checks), [ROUND_NOTE, RANDOM_NOTE, INTERVAL_NOTE], "Time of a round, ms"),
        (
            "gpu_projected",
            projected_table(checks, published),
            [PROJECTED_NOTE, ROUND_NOTE, INTERVAL_NOTE],
            "Projected speed: published MAT over the time of a round",
        ),
    )
    texts: dict[str, str] = {}
    for stem, table, notes, caption in tables:
        if len(table):
            texts |= numbers_and_text(stem, table, as_text(table), [*where, *notes], caption)
    if not texts:
        raise UsageError("no stage of these checks has results; run talon-bench gpu-check again, see its last lines")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """A table for readers: a number with its ends becomes one cell, and repeated first cells are blank."""
    columns = {}
    for name in table.columns:
        if name.endswith((" low", " high")):
            continue
        if f"{name} low" in table:
            cells = table[[name, f"{name} low", f"{name} high"]].itertuples(index=False)
            columns[f"{name} [95 % CI]"] = [interval_text(*cell) for cell in cells]
        elif pd.api.types.is_float_dtype(table[name]):
            columns[name] = [number(value) for value in table[name]]
        else:
            columns[name] = [_cell(value) for value in table[name]]
    text = pd.DataFrame(columns)
    text.loc[text["device"] == text["device"].shift(), "device"] = ""
    return text


def _cell(value: object) -> str:
    return "n/a" if value is None else str(value)


def _results(check: Check, stage: str) -> Mapping[str, Any]:
    return check["stages"].get(stage, {}).get("results", {})


def _ms(row: Mapping[str, Any]) -> dict[str, float]:
    return {"ms": row["ms"], "ms low": row["ms_low"], "ms high": row["ms_high"], "host ms": row["host_ms"]}


def _published(published: pd.DataFrame, target: str, own: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Cells (data set, MAT, published speedup) of a method; of AR one of its own, MAT 1."""
    if own["policy"] == "ar":
        yield {"dataset": "any", "MAT": 1.0, "published speedup": float("nan")}
        return
    chosen = published[
        (published["source"] == SOURCE)
        & (published["temperature"] == 0)
        & (published["target"] == target)
        & (published["method"] == NAMES.get((own["policy"], own.get("head"))))
    ]
    for cell in chosen.itertuples():
        yield {"dataset": cell.dataset, "MAT": cell.mat, "published speedup": cell.speedup}


def _rate(turns: pd.DataFrame, method: str) -> Estimate:
    """Rounds of a method per millisecond."""
    own = turns[turns["method"] == method]
    return ratio_of_sums(own["rounds"], own["decode_ms"])


def _ratio(turns: pd.DataFrame, other: str, method: str) -> Estimate:
    """Time of a round of `other` over that of `method`, on the prompts that both completed."""
    sides = [turns[turns["method"] == name] for name in (other, method)]
    pairs = sides[0].merge(sides[1], on="prompt_id", suffixes=("_other", ""))
    return ratio_of_sums(
        pairs["decode_ms_other"], pairs["decode_ms"], a_units=pairs["rounds_other"], b_units=pairs["rounds"]
    )


def _estimate(name: str, found: Estimate, factor: float) -> dict[str, float]:
    return {name: factor * found.value, f"{name} low": factor * found.low, f"{name} high": factor * found.high}


def _origin(check: Check) -> str:
    """Where a check comes from, in one line."""
    machine = _results(check, "machine").get("provenance", {})
    parts = [device_of(check), f"torch {machine.get('torch')}", f"read bandwidth {machine.get('read_gb_s')} GB/s"]
    gpu = _results(check, "machine").get("gpu") or {}
    if driver := (gpu.get("nvidia_smi") or {}).get("driver_version"):
        parts.append(f"driver {driver}")
    unfit = "" if check["gpu"] else ". Not a GPU: only the form of this table is of use"
    left = [name for name, stage in check["stages"].items() if stage["status"] != "done"]
    missing = f". Not done: {', '.join(left)}" if left else ""
    return f"{', '.join(parts)}, {check['started'][:10]}{missing}{unfit}."
