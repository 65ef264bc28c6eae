"""How near passes come to the memory roofline: bytes that a phase must read, over what its time would let memory give.

At batch 1 a pass must read the weights once and the keys and values of every committed token; nothing else is of weight.
A share of 1 is a pass that does nothing but read at the bandwidth measured before the run (`provenance.read_bandwidth`).
It can pass 1 where weights stay in a CPU's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from talon_bench.report.groups import marked, row_groups
from talon_bench.report.load import RunData
from talon_bench.report.notes import name
from talon_bench.report.render import number

ROOFLINE_NOTE = (
    "bytes / (time x bandwidth): bytes are the weights that a pass multiplies with and the keys and values of the committed"
    " tokens, bandwidth is what a sum over memory reached before the run. GB and ms are those of a pass. Decode is both phases"
    " over all decode time; its GB and ms are those of a round."
)

PHASES = ("verify", "draft", "decode")

_ROW = ["target", "dataset", "method"]
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class PassBytes:
    """What one pass of a model must read: `weights`, and `row` for each committed token; `first` once a round besides."""

    weights: int
    row: int
    first: int = 0


def target_bytes(info: Mapping[str, Any]) -> PassBytes | None:
    """Of the target, from run.json; None in a run that did not record it."""
    found = info.get("checkpoint", {}).get("pass_bytes")
    return None if found is None else PassBytes(found["weights"], found["row"])


def head_bytes(info: Mapping[str, Any], kind: str) -> PassBytes:
    """Of the draft head that run.json has under this key, "eagle2" or "eagle3".

    An EAGLE-3 head reads the projection of the target's features in the first pass of a round only. An EAGLE-1/2 head uses
    the target's output projection, which the fused engine holds in float32.
    """
    spec, checkpoint = info["heads"][kind], info["checkpoint"]
    item = _ITEM_BYTES[checkpoint["dtype"]]
    hidden, width = spec["hidden_size"], spec["head_dim"]
    is_eagle3 = spec["kind"] == "eagle3"
    query, key_value = spec["num_heads"] * width, spec["num_kv_heads"] * width
    attention = (query + 2 * key_value) * (2 * hidden if is_eagle3 else hidden) + query * hidden
    weights = item * (attention + 3 * hidden * spec["intermediate_size"])
    row = 2 * item * key_value
    if is_eagle3:
        features = len(spec["feature_layers"]) * spec["target_hidden_size"]
        return PassBytes(weights + item * spec["draft_vocab_size"] * hidden, row, item * features * hidden)
    projection = (4 if checkpoint["engine"] == "fused" else item) * spec["vocab_size"] * hidden
    return PassBytes(weights + item * 2 * hidden * hidden + projection, row)


def roofline_table(runs: Sequence[RunData]) -> pd.DataFrame:
    """One row per run x method x phase with passes in it: "verify", "draft", and "decode" for both over all decode time.

    GB and ms are those of a pass on average, of "decode" those of a round. Runs without the bytes or the bandwidth on
    record have no rows.
    """
    rows = []
    for group, run in zip(row_groups(runs), runs, strict=True):
        if not _on_record(run):
            continue
        bandwidth = run.info["provenance"]["read_gb_s"]
        for method in run.methods:
            for phase, (passes, gb, ms) in phase_traffic(run, method).items():
                cells = {"target": group, "dataset": run.dataset, "method": marked(run, method), "phase": phase}
                cells |= {"passes": passes, "GB": gb / passes, "ms": ms / passes}
                rows.append(cells | {"GB/s": gb / ms * 1e3, "share": gb / ms * 1e3 / bandwidth})
    return pd.DataFrame(rows)


def roofline_text(table: pd.DataFrame) -> pd.DataFrame:
    """`roofline_table` for readers: one row per run x method, phases side by side, every number as text; n/a without passes."""
    rows = []
    for place, phases in table.groupby(_ROW, sort=False):
        cells = dict(zip(_ROW, place, strict=True))
        by_phase = phases.set_index("phase")[["GB", "ms", "GB/s", "share"]].reindex(PHASES)
        for phase, own in by_phase.iterrows():
            cells |= {f"{phase} GB": number(own["GB"], 3), f"{phase} ms": number(own["ms"])}
            cells[f"{phase} share"] = "n/a" if pd.isna(own["share"]) else f"{100 * own['share']:.1f} %"
        rows.append(cells | {"decode GB/s": number(by_phase.loc["decode", "GB/s"], 1)})
    text = pd.DataFrame(rows)
    places = text[["target", "dataset"]]
    text.loc[(places == places.shift()).all(axis=1), ["target", "dataset"]] = ""
    return text


def roofline_notes(runs: Sequence[RunData]) -> list[str]:
    """What the shares are of, and the bandwidth of each run that has rows."""
    found = [f"{name(run)} {run.info['provenance']['read_gb_s']:.1f}" for run in runs if _on_record(run)]
    return [ROOFLINE_NOTE, f"Bandwidth in GB/s: {', '.join(found)}."]


def phase_traffic(run: RunData, method: str) -> dict[str, tuple[int, float, float]]:
    """(passes, GB that they must read, ms that they took) of each phase of a method; nothing where it measured nothing."""
    rounds = run.measured[1]
    rounds = rounds[rounds["method"] == method]
    if rounds.empty:
        return {}
    target = target_bytes(run.info)
    gb = (target.weights * len(rounds) + target.row * rounds["context"].sum()) / 1e9
    found = {"verify": (len(rounds), gb, rounds["verify_ms"].sum())}
    kind, passes = run.methods[method].get("head"), int(rounds["draft_passes"].sum())
    if kind is not None and passes:
        head = head_bytes(run.info, kind)
        rows = (rounds["draft_passes"] * rounds["context"]).sum()
        draft_gb = (head.weights * passes + head.row * rows + head.first * len(rounds)) / 1e9
        found["draft"] = (passes, draft_gb, rounds["draft_ms"].sum())
        gb += draft_gb
    decode_ms = rounds[["draft_ms", "verify_ms", "other_ms"]].to_numpy().sum()
    return found | {"decode": (len(rounds), gb, decode_ms)}


def _on_record(run: RunData) -> bool:
    """Whether the run recorded both the bytes of a pass and the bandwidth."""
    return run.info["provenance"].get("read_gb_s") is not None and target_bytes(run.info) is not None
