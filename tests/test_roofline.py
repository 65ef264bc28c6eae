"""Bytes that passes must read, against tensors; shares of the bandwidth, against hand-made records; where they are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from analysis import tables
from conftest import ToyFolders
from run_records import write_run
from talon_bench import provenance
from talon_bench.compose import compose_config
from talon_bench.drafters.checkpoint import load_head
from talon_bench.job import _head_facts, run
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.page import page
from talon_bench.report.roofline import (
    ROOFLINE_NOTE,
    PassBytes,
    head_bytes,
    roofline_notes,
    roofline_table,
    roofline_text,
    target_bytes,
)
from toy_runs import toy_overrides

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


def test_phases_stand_side_by_side_for_readers(tmp_path: Path):
    own = run_of(tmp_path)
    text = roofline_text(roofline_table([own])).to_dict("records")
    assert [(row["target"], row["dataset"], row["method"]) for row in text] == [
        ("smollm2-135m", "gsm8k", "AR"),
        ("", "", "TALON_x 50% & more"),
    ]
    ar, talon = text
    assert [ar[f"verify {name}"] for name in ("GB", "ms", "share")] == ["1.012", "9.50", "106.6 %"]
    assert [ar[f"draft {name}"] for name in ("GB", "ms", "share")] == ["n/a", "n/a", "n/a"]
    assert [ar[f"decode {name}"] for name in ("GB", "ms", "share", "GB/s")] == ["1.012", "10.00", "101.2 %", "101.2"]
    assert talon["draft ms"] == "1.25"
    assert roofline_notes([own]) == [ROOFLINE_NOTE, "Bandwidth in GB/s: smollm2-135m / gsm8k 100.0."]


@pytest.fixture
def real_run(toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of the toys, beside nothing else."""
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 1.0)
    monkeypatch.setattr(provenance, "READ_BYTES", 1 << 22)
    return Path(run(compose_config([*toy_overrides(toy_folders, tmp_path), "dataset.limit=2"])).result["run_dir"])


def older(folder: Path) -> None:
    """The run as it was recorded before bytes and bandwidth were."""
    info = json.loads((folder / "run.json").read_text())
    assert info["checkpoint"].pop("pass_bytes")["weights"] > 0
    assert info["provenance"].pop("read_gb_s") > 0
    (folder / "run.json").write_text(json.dumps(info))


def test_a_real_run_shows_its_roofline_and_an_older_one_does_not(
    real_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert tables.main([str(real_run), "--out", str(out)]) == 0
    found = {file.name: file.read_text(encoding="utf-8") for file in out.iterdir()}
    table = pd.read_csv(out / "roofline.csv", comment="#")
    labels = list(load_run(real_run).labels.values())
    phases = {label: ["verify", "draft", "decode"] for label in labels} | {"AR": ["verify", "decode"]}
    assert table.groupby("method", sort=False)["phase"].apply(list).to_dict() == phases
    assert ((table["share"] > 0) & (table["GB"] > 0)).all()
    assert found["roofline.md"] in capsys.readouterr().out
    assert f"- {ROOFLINE_NOTE}\n" in found["roofline.md"]
    assert "\\input{roofline.tex}" in found["tables.tex"]
    html = page(load_runs(real_run), tmp_path / "report.html")
    assert re.findall(r'href="#roofline"|<section id="roofline"', html) == [
        'href="#roofline"',
        '<section id="roofline"',
    ]
    [section] = re.findall(r'<section id="roofline".*?</section>', html, re.DOTALL)
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", section)
    for row in roofline_text(roofline_table(load_runs(real_run))).to_dict("records"):
        texts = [text for name, text in row.items() if name not in ("target", "dataset")]
        start = cells.index(texts[0])
        assert cells[start : start + len(texts)] == texts
    for note in roofline_notes(load_runs(real_run)):
        assert note in section
    older(real_run)
    assert tables.main([str(real_run), "--out", str(tmp_path / "without")]) == 0
    assert {file.name for file in (tmp_path / "without").iterdir()} == {
        name for name in found if "roofline" not in name
    }
    assert "roofline" not in page(load_runs(real_run), tmp_path / "report.html").lower()


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
