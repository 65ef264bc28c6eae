"""Tables of GPU checks, from a check made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis import gpu_check
from talon_bench.errors import UsageError
from talon_bench.report.gpu import (
    as_text,
    device_of,
    draft_table,
    ideas_table,
    load_checks,
    lossless_table,
    projected_table,
    round_table,
    verify_table,
    write_checks,
)
from talon_bench.report.paper import COLUMNS

TIMES = {"ms": 2.0, "ms_low": 1.9, "ms_high": 2.2, "host_ms": 0.1, "repeats": 4, "GB": 4.0, "share": 0.5}
SETTINGS = {
    "ar": {"policy": "ar", "head": None},
    "ar_eager": {"policy": "ar", "head": None},
    "talon": {"policy": "talon", "head": "eagle3"},
    "eagle3": {"policy": "eagle", "head": "eagle3"},
}
PER_ROUND = {"ar": (10, 100.0), "ar_eager": (10, 200.0), "talon": (5, 75.0), "eagle3": (5, 100.0)}
"""Rounds and decode time of an answer."""
PUBLISHED = pd.DataFrame(
    [
        ("TALON", "1", 0.0, "llama-3.1-8b", "TALON", "gsm8k", 3.81, 6.0, None),
        ("TALON", "1", 0.0, "llama-3.1-8b", "EAGLE-3", "gsm8k", 3.63, 6.5, 9),
        ("TALON", "3", 1.0, "llama-3.1-8b", "TALON", "gsm8k", 2.84, 4.7, None),
        ("EAGLE-3", "1", 0.0, "llama-3.1-8b", "EAGLE-3", "gsm8k", 4.48, 6.23, None),
        ("TALON", "1", 0.0, "qwen3-8b", "TALON", "gsm8k", 2.67, 3.85, None),
    ],
    columns=COLUMNS,
)


def rounds() -> dict:
    """What a check keeps of one kind of round; two prompts, the second twice as long."""
    turns = [
        {"method": name, "prompt_id": str(prompt), "rounds": count * factor, "decode_ms": ms * factor}
        for name, (count, ms) in PER_ROUND.items()
        for prompt, factor in ((0, 1), (1, 2))
    ]
    methods = {
        name: {
            "label": name.upper(),
            "mat": 1.0,
            "draft_passes": 7.5,
            "draft_ms": 5.0,
            "verify_ms": 9.0,
            "other_ms": 1.0,
        }
        | {"round_ms": ms / count, "round_ms_low": 0.9 * ms / count, "round_ms_high": 1.1 * ms / count}
        for name, (count, ms) in PER_ROUND.items()
    }
    shares = [
        {"method": "TALON", "phase": "decode", "share": 0.4},
        {"method": "TALON", "phase": "verify", "share": 0.6},
    ]
    return {"settings": SETTINGS, "turns": turns, "methods": methods, "roofline": shares}


def check(gpu: str | None = "Test GPU", **facts: object) -> dict:
    passes = [
        {"context": 512, "form": "static", "nodes": 1, **TIMES},
        {"context": 512, "form": "static", "nodes": 64, **TIMES, "ms": 3.0},
        {"context": 512, "form": "eager", "nodes": 1, **TIMES, "ms": 8.0},
    ]
    drafts = [{"context": 512, "kind": "expansion", "width": 8, **TIMES}]
    methods = {"talon": {"mat": 2.5, "eta": 3.0, "tokens_per_second": 900.0, "equal_prompts": 5, "compared_prompts": 6}}
    methods["talon"]["worst_margin"] = 0.25
    results = {
        "machine": {
            "provenance": {"torch": "2.13.0", "read_gb_s": 4000.0},
            "gpu": {"nvidia_smi": {"driver_version": "570.86"}},
        },
        "lossless bfloat16": {"methods": methods},
        "verify": {"passes": passes},
        "draft": {"passes": drafts},
        "rounds": {"as they come": rounds(), "led": rounds()},
    }
    stages = {name: {"status": "done", "findings": [], "results": found} for name, found in results.items()}
    shape = {"gpu": gpu, "scale": "full", "shape": "llama-3.1-8b", "started": "2026-01-31T10:00:00+00:00"}
    return {"schema": 1, "command": "gpu-check", **shape, "stages": stages, **facts}


def test_passes_stand_beside_a_pass_over_one_node() -> None:
    table = verify_table([check()])
    assert table["x one"].tolist() == [1.0, 1.5, 4.0]
    assert table.loc[0, ["ms", "ms low", "ms high", "host ms", "share"]].tolist() == [2.0, 1.9, 2.2, 0.1, 0.5]
    assert draft_table([check()]).loc[0, ["kind", "width", "ms"]].tolist() == ["expansion", 8, 2.0]


def test_ideas_have_a_row_for_each_form_and_size() -> None:
    found = {
        "attention": {"rows": [{"attention": "cuDNN", "nodes": 64, **TIMES}]},
        "projection": {"nodes": 64, "rows": [{"form": "float32 sums", "error": 1e-6, **TIMES}]},
    }
    table = ideas_table([check(stages={"ideas": {"status": "done", "findings": [], "results": found}})])
    assert table["form"].tolist() == ["cuDNN", "float32 sums"]
    assert table["nodes"].tolist() == [64, 64]
    assert table["error"].tolist()[1] == 1e-6


def test_rounds_have_a_row_for_each_kind_and_method() -> None:
    table = round_table([check()])
    assert len(table) == 2 * len(PER_ROUND)
    talon = table[(table["rounds"] == "led") & (table["method"] == "TALON")].iloc[0]
    assert (talon["ms"], talon["verify ms"], talon["host and other ms"], talon["share"]) == (15.0, 9.0, 1.0, 0.4)


def test_losslessness_by_dtype_and_method() -> None:
    row = lossless_table([check()]).iloc[0]
    assert (row["dtype"], row["answers"], row["equal"], row["largest margin"]) == ("bfloat16", 6, 5, 0.25)


def test_the_published_mat_over_the_time_of_a_led_round() -> None:
    table = projected_table([check()], PUBLISHED).set_index("method")
    assert list(table.index) == ["AR", "AR_EAGER", "TALON", "EAGLE3"]
    talon, eagle, eager = table.loc["TALON"], table.loc["EAGLE3"], table.loc["AR_EAGER"]
    # 15 ms a round, 10 and 20 ms a plain token.
    assert (talon["dataset"], talon["MAT"], talon["published speedup"]) == ("gsm8k", 6.0, 3.81)
    assert talon["projected tokens/s"] == pytest.approx(400)
    assert talon["projected over AR"] == pytest.approx(4.0)
    assert talon["projected over AR eager"] == pytest.approx(8.0)
    assert eagle["projected over AR eager"] == pytest.approx(6.5)
    assert (eager["projected tokens/s"], eager["projected over AR"]) == (pytest.approx(50), pytest.approx(0.5))
    # Both prompts have the same times a round, so no draw of prompts gives another ratio.
    assert talon["projected over AR low"] == pytest.approx(4.0)


def test_another_targets_mat_is_not_taken() -> None:
    table = projected_table([check(shape="qwen3-8b")], PUBLISHED)
    assert table[table["dataset"] != "any"]["MAT"].tolist() == [3.85]


def test_what_a_check_has_not_reached_has_no_rows() -> None:
    cut = check()
    del cut["stages"]["draft"]
    led = cut["stages"]["rounds"]["results"]["led"]
    cut["stages"]["rounds"]["results"] = {"led": {"settings": led["settings"], "turns": led["turns"]}}
    assert draft_table([cut]).empty
    assert round_table([cut]).empty
    assert projected_table([cut], PUBLISHED).empty
    assert len(verify_table([cut, check()])) == 6


def test_readers_see_intervals_and_each_device_once() -> None:
    text = as_text(verify_table([check(), check("Other GPU")]))
    assert text["ms [95 % CI]"].tolist()[:2] == ["2.00 [1.90, 2.20]", "3.00 [1.90, 2.20]"]
    assert text["device"].tolist() == ["Test GPU", "", "", "Other GPU", "", ""]
    assert "ms low" not in text


def test_a_check_without_a_gpu_says_so() -> None:
    assert device_of(check(None, scale="tiny")) == "CPU, not a GPU, tiny shapes"
    assert device_of(check()) == "Test GPU"


def test_files_and_notes(tmp_path: Path) -> None:
    stopped = check()
    stopped["stages"]["lossless float32"] = {"status": "left out", "findings": [], "results": {}}
    paths = write_checks([stopped, check(None)], PUBLISHED, tmp_path / "new")
    assert [path.name for path in paths[-3:]] == ["gpu_projected.csv", "gpu_projected.md", "gpu_projected.tex"]
    table = pd.read_csv(tmp_path / "new" / "gpu_projected.csv", comment="#")
    assert table["projected tokens/s"].round(6).tolist() == [100, 50, 400, 325] * 2
    text = (tmp_path / "new" / "gpu_projected.md").read_text()
    assert (
        "- Test GPU, torch 2.13.0, read bandwidth 4000.0 GB/s, driver 570.86, 2026-01-31. Not done: lossless float32."
        in text
    )
    assert "Not a GPU: only the form of this table is of use." in text
    assert "- projected, not measured: " in text
    assert r"\label{tab:gpu_projected}" in (tmp_path / "new" / "gpu_projected.tex").read_text()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"command": "doctor", "schema": 1}', '{"command": "gpu-check", "schema": 9}']
)
def test_other_files_are_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(UsageError, match="is no result of talon-bench gpu-check"):
        load_checks([file])
    assert gpu_check.main([str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_check_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(check(stages={})))
    assert gpu_check.main([str(file), "--out", str(tmp_path / "out")]) == 2
    assert "no stage of these checks has results" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
