"""Bytes that passes must read, against tensors; shares of the bandwidth, against hand-made records."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from run_records import write_run
from talon_bench import provenance
from talon_bench.drafters.checkpoint import load_head
from talon_bench.job import _head_facts
from talon_bench.report.load import load_run
from talon_bench.report.roofline import PassBytes, head_bytes, roofline_table, target_bytes

CHECKPOINT = {"dtype": "bfloat16", "engine": "stock", "pass_bytes": {"weights": 10**9, "row": 10**6}}
HEAD = {
    "kind": "eagle3",
    "hidden_size": 100,
    "target_hidden_size": 100,
    "intermediate_size": 400,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 25,
    "vocab_size": 5000,
    "draft_vocab_size": 1000,
    "feature_layers": [2, 4, 6],
}
PROVENANCE = {"dtype": "bfloat16", "load_before": 0.2, "load_after": 0.3, "busy": False, "read_gb_s": 100.0}


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_heads_bytes_are_those_of_its_tensors(kind, toy_folders, toy_target):
    target = toy_target("llama")
    loaded = load_head(toy_folders.head("llama", kind), target.shape, name=kind)
    info = {"heads": {"head": _head_facts(loaded)}, "checkpoint": {"dtype": "float32", "engine": "stock"}}
    found = head_bytes(info, "head")
    matrices = {name: tensor for name, tensor in loaded.tensors.items() if tensor.dim() == 2}
    fc = matrices.pop("fc.weight").nbytes
    if kind == "eagle3":
        assert found.first == fc, "read in the first pass of a round only"
        assert found.weights == sum(tensor.nbytes for tensor in matrices.values())
    else:
        projection = target.model.lm_head.weight.nbytes
        assert found == PassBytes(sum(t.nbytes for t in matrices.values()) + fc + projection, found.row)
    assert found.row == 2 * loaded.spec.num_kv_heads * loaded.spec.head_dim * 4


def test_an_eagle2_head_reads_the_float32_projection_of_the_fused_engine():
    spec = {**HEAD, "kind": "eagle", "feature_layers": []}
    stock, fused = (
        head_bytes({"heads": {"eagle2": spec}, "checkpoint": {**CHECKPOINT, "engine": engine}}, "eagle2")
        for engine in ("stock", "fused")
    )
    assert fused.weights - stock.weights == 2 * 5000 * 100


def run_of(folder: Path, **info: object):
    facts = {"provenance": PROVENANCE, "checkpoint": CHECKPOINT, "heads": {"eagle3": {"name": "h", **HEAD}}}
    return load_run(write_run(folder, {"ar": [80.0] * 2, "talon": [40.0] * 2}, **{**facts, **info}))


def test_shares_of_the_bandwidth(tmp_path: Path):
    table = roofline_table([run_of(tmp_path)]).set_index(["method", "phase"])
    # AR: 2 prompts of 8 rounds behind 9 to 16 tokens; 76 ms of a prompt's 80 are its passes.
    gb = 1 + 12.5e-3
    ar = table.loc[("AR", "verify")]
    assert ar["passes"] == 16
    assert ar["GB"] == pytest.approx(gb)
    assert ar["ms"] == pytest.approx(76 / 8)
    assert ar["GB/s"] == pytest.approx(gb / (76 / 8) * 1e3)
    assert ar["share"] == pytest.approx(gb / (76 / 8) * 1e3 / 100)
    assert table.loc[("AR", "decode")]["share"] == pytest.approx(gb / 10 * 1e3 / 100)
    assert ("AR", "draft") not in table.index
    # TALON: 4 rounds a prompt behind 9 to 12 tokens, 2 draft passes each, a quarter of 40 ms.
    attention = (4 + 2 * 2) * 25 * 200 + 4 * 25 * 100
    weights = 2 * (attention + 3 * 100 * 400 + 1000 * 100)
    row, first = 2 * 2 * 2 * 25, 2 * 300 * 100
    draft = table.loc[("TALON_x 50% & more", "draft")]
    assert draft["passes"] == 16
    assert draft["GB"] == pytest.approx((weights + row * 10.5 + first / 2) / 1e9)
    assert draft["ms"] == pytest.approx(10 / 8)
    whole = table.loc[("TALON_x 50% & more", "decode")]
    assert whole["passes"] == 8
    assert whole["GB"] == pytest.approx(1 + 10.5e-3 + 2 * draft["GB"])
    assert whole["ms"] == pytest.approx(10)


@pytest.mark.parametrize(
    "info", [{"checkpoint": {}}, {"provenance": {k: v for k, v in PROVENANCE.items() if k != "read_gb_s"}}]
)
def test_runs_without_the_numbers_on_record_have_no_rows(tmp_path: Path, info: dict):
    assert roofline_table([run_of(tmp_path, **info)]).empty
    assert isinstance(roofline_table([]), pd.DataFrame)
    assert target_bytes({}) is None


def test_the_bandwidth_is_measured_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(provenance, "READ_BYTES", 1 << 22)
    made = torch.ones
    blocks = []
    monkeypatch.setattr(torch, "ones", lambda *given, **how: blocks.append(given) or made(*given, **how))
    provenance.read_bandwidth.cache_clear()
    first, again = (provenance.read_bandwidth(torch.device("cpu"), 1) for _ in range(2))
    provenance.read_bandwidth.cache_clear()
    assert first == again
    assert 0.1 < first < 10_000
    assert blocks == [((1 << 22) // 4,)]
