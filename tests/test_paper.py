"""The published numbers as data, checked by what the papers derive from them, and the comparison of ours with them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis import compare_paper
from run_records import AR_MS, FAST_MS, LABELS, SLOW_MS, write_run
from talon_bench.errors import UsageError
from talon_bench.report.cells import DATASETS
from talon_bench.report.load import load_run
from talon_bench.report.paper import (
    load_published,
    load_settings,
    same_cells,
    setting_differences,
    shapes,
    shapes_text,
)

EAGLE = {"policy": "eagle", "head": "eagle3", "budget": 60, "depth": 8, "top_k": 10}
TALON = {"policy": "talon", "head": "eagle3", "budget": 60, "root_top_k": 10, "alpha": 0.03, "init_layers": 1}
SETTINGS = {"eagle3": EAGLE, "talon": TALON}
TIMES = {"ar": AR_MS, "eagle3": SLOW_MS, "talon": FAST_MS}


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load_published(compare_paper.PUBLISHED)


@pytest.fixture(scope="module")
def settings() -> pd.DataFrame:
    return load_settings(compare_paper.PUBLISHED)


def test_every_published_cell_is_there_once(published: pd.DataFrame) -> None:
    counts = published.groupby(["source", "temperature", "method"]).size()
    assert counts["TALON"].to_dict() == {
        (temperature, method): 30 if method in ("EAGLE-3", "TALON") else 6
        for temperature in (0, 1)
        for method in ("EAGLE-3", "TALON", "SD", "Medusa", "Hydra", "OPT-Tree")
    }
    assert counts["EAGLE-3"].to_dict() == {(0, "EAGLE-3"): 24, (1, "EAGLE-3"): 24}
    assert counts["EAGLE-2"].to_dict() == {(0, "EAGLE"): 10, (0, "EAGLE-2"): 10, (1, "EAGLE"): 1, (1, "EAGLE-2"): 4}
    assert not published.duplicated(["source", "temperature", "target", "method", "dataset"]).any()
    assert set(published["dataset"]) == {*DATASETS, "mean"}
    assert published[["speedup", "mat"]].notna().all(axis=None)
    assert (published["speedup"] <= published["mat"]).all(), "speedup and MAT are not swapped"


@pytest.mark.parametrize(
    ("temperature", "gain", "means"),
    [(0, 0.088, [1.055, 1.065, 1.055, 1.162, 1.101]), (1, 0.097, [1.038, 1.090, 1.122, 1.143, 1.093])],
)
def test_talon_gains_as_its_paper_says(
    published: pd.DataFrame, temperature: int, gain: float, means: list[float]
) -> None:
    """Mean gain over EAGLE-3 over the 30 cells, and per target; MAT falls in 24 of 30 cells at temperature 0."""
    cells = published[(published["source"] == "TALON") & (published["temperature"] == temperature)]
    cells = cells.pivot(index=["target", "dataset"], columns="method", values=["speedup", "mat"])
    ratio = cells["speedup"]["TALON"] / cells["speedup"]["EAGLE-3"]
    assert ratio.mean() - 1 == pytest.approx(gain, abs=5e-4)
    targets = ["vicuna-13b", "dsl-8b", "llama-3.1-8b", "qwen3-8b", "qwen3-32b"]
    assert ratio.groupby(level="target").mean()[targets].tolist() == pytest.approx(means, abs=6e-4)
    if temperature == 0:
        assert (cells["mat"]["TALON"] < cells["mat"]["EAGLE-3"]).sum() == 24


def test_printed_means_are_the_means_of_the_cells(published: pd.DataFrame) -> None:
    """EAGLE-3's for all eight rows, EAGLE's and EAGLE-2's where every data set is there; to the printed digit.

    Two printed means do not fit their cells (results/paper/README.md).
    """
    own = published[published["source"] != "TALON"]
    off = {}
    for key, cells in own.groupby(["source", "temperature", "target", "method"]):
        cells = cells.set_index("dataset")[["speedup", "mat"]]
        if len(cells) > 1:
            off[key] = (cells.drop("mean").mean() - cells.loc["mean"]).abs().max()
    assert len(off) == 8 + 2
    assert [key[1:3] for key, value in off.items() if value > 0.0101] == [(0, "llama-3.3-70b"), (1, "llama-3.1-8b")]


def test_the_same_cell_by_hand(tmp_path: Path, published: pd.DataFrame) -> None:
    """EAGLE-3 1.6 and TALON 2.0, MAT and eta 2; Vicuna-13B on GSM8K."""
    run = load_run(write_run(tmp_path, TIMES, target="vicuna-13b", settings=SETTINGS))
    table = same_cells([run], published).set_index(["method", "source"])
    assert sorted(table.index) == [
        (LABELS["eagle3"], "EAGLE-3, table 1"),
        (LABELS["eagle3"], "TALON, table 1"),
        (LABELS["talon"], "TALON, table 1"),
    ]
    talon = table.loc[(LABELS["talon"], "TALON, table 1")]
    assert talon[["speedup", "published speedup", "speedup difference"]].tolist() == pytest.approx([2, 3.99, -1.99])
    assert talon[["MAT", "published MAT", "MAT difference"]].tolist() == pytest.approx([2, 6.80, -4.80])
    assert pd.isna(talon["published eta"])
    eagle = table.loc[(LABELS["eagle3"], "TALON, table 1")]
    assert eagle[["speedup", "published speedup", "speedup difference"]].tolist() == pytest.approx([1.6, 3.87, -2.27])
    assert eagle[["eta", "published eta", "eta difference"]].tolist() == [2, 9, -7]
    assert table.loc[(LABELS["eagle3"], "EAGLE-3, table 1"), "published speedup"] == 5.32


def test_cells_of_another_temperature_or_head_are_not_compared(tmp_path: Path, published: pd.DataFrame) -> None:
    run = load_run(write_run(tmp_path / "a", TIMES, target="vicuna-13b", settings=SETTINGS, temperature=1.0))
    assert set(same_cells([run], published)["source"]) == {"TALON, table 3", "EAGLE-3, table 1"}
    assert same_cells([run], published)["published speedup"].tolist() == [4.71, 3.29, 3.35]
    half = load_run(write_run(tmp_path / "b", TIMES, target="vicuna-13b", settings=SETTINGS, temperature=0.5))
    assert same_cells([half], published).empty
    talon_on_eagle2 = {"talon": TALON | {"head": "eagle2"}}
    other = load_run(write_run(tmp_path / "c", TIMES, target="vicuna-13b", settings=talon_on_eagle2))
    assert same_cells([other], published).empty


def test_the_shape_by_hand(tmp_path: Path, published: pd.DataFrame) -> None:
    """TALON takes 40 ms where EAGLE-3 takes 50, with 8 rounds for its 4; on GSM8K the paper has 1.03 to 1.13."""
    run = load_run(write_run(tmp_path / "a", TIMES, settings=SETTINGS, counts={"talon": [8] * 6}))
    row = shapes([run], published).iloc[0]
    assert row[["budget", "ratio", "CI low", "CI high", "MAT ratio"]].tolist() == pytest.approx(
        [60, 1.25, 1.25, 1.25, 0.5]
    )
    ratios = [3.99 / 3.87, 4.43 / 4.24, 3.81 / 3.63, 2.67 / 2.37, 2.38 / 2.22]
    published_range = row[["lowest ratio", "mean ratio", "highest ratio", "targets"]].tolist()
    assert published_range == pytest.approx([min(ratios), sum(ratios) / 5, max(ratios), 5])
    assert row["lowest MAT ratio"] == pytest.approx(6.24 / 6.42)
    unknown = load_run(write_run(tmp_path / "b", TIMES, settings=SETTINGS, dataset="spider"))
    assert shapes_text(shapes([unknown], published)).iloc[0].tolist() == [
        *("smollm2-135m", "spider", f"{LABELS['talon']} / {LABELS['eagle3']}", "60", "1.25 [1.25, 1.25]"),
        *("n/a", "1.00", "n/a"),
    ]
    unequal = load_run(write_run(tmp_path / "c", TIMES, settings=SETTINGS | {"talon": TALON | {"budget": 16}}))
    assert shapes([unequal], published).empty, "another budget is another question"


def test_differing_settings_come_with_their_values(tmp_path: Path, settings: pd.DataFrame) -> None:
    runs = [
        load_run(write_run(tmp_path / "a", TIMES, settings=SETTINGS)),
        load_run(write_run(tmp_path / "b", TIMES, settings=SETTINGS, dataset="qa", source="samples")),
    ]
    rows = setting_differences(runs, settings).set_index("setting")
    assert rows.index[:2].tolist() == ["target", "temperature"]
    assert rows.loc["GPU", ["ours", "TALON"]].tolist() == ["none (Test CPU, 2 threads)", "one NVIDIA H200"]
    assert rows.loc["max new tokens", ["ours", "TALON"]].tolist() == ["64", "1024"]
    assert rows.loc["prompts", "ours"] == "gsm8k 6 (hub); qa 6 (samples)"
    assert rows.loc["dtype", ["ours", "TALON"]].tolist() == ["float32", "not stated"]
    assert rows.loc["EAGLE-3 tree", ["ours", "TALON"]].tolist() == [
        "budget 60, depth 8 (8 draft passes), top_k 10",
        "budget 60, depth 8 (9 draft passes), top_k 10",
    ]
    assert "TALON tree" not in rows.index, "equal settings are left out"
    assert "EAGLE-2 tree" not in rows.index, "so are methods that no run has"


def test_a_static_tree_is_described_by_its_size(tmp_path: Path, settings: pd.DataFrame) -> None:
    own = {"policy": "static", "head": "eagle2", "tree": [[0], [1], [0, 0]]}
    run = load_run(write_run(tmp_path, TIMES, settings={"talon": own}))
    rows = setting_differences([run], settings).set_index("setting")
    assert rows.loc["EAGLE tree", ["ours", "EAGLE-2"]].tolist() == [
        "3 drafted nodes, depth 2, static",
        "25 drafted nodes, depth 5, static",
    ]


def test_the_command_says_that_the_embedded_default_has_no_published_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", TIMES, settings=SETTINGS)
    out = tmp_path / "deep" / "compare.md"
    assert compare_paper.main([str(tmp_path / "runs"), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text == out.read_text(encoding="utf-8")
    parts = [
        text.index(part) for part in ("## Settings that differ", "No source has smollm2-135m (they ", "## The shape")
    ]
    assert parts == sorted(parts)
    assert "## The same cells" not in text


def test_the_command_compares_cells_of_a_published_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, TIMES, target="qwen3-8b", settings=SETTINGS)
    assert compare_paper.main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "No source has" not in text
    line = next(line for line in text.splitlines() if LABELS["talon"] in line)
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        *("qwen3-8b", "gsm8k", LABELS["talon"], "TALON, table 1", "2.00 [2.00, 2.00]", "2.67", "-0.67"),
        *("2.00", "3.85", "-1.85", "2.00", "n/a"),
    ]


def test_what_cannot_be_compared_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_paper.main([str(tmp_path / "none")]) == 2
    write_run(
        tmp_path / "sweep", {"ar": AR_MS, "talon[alpha=0.1]": FAST_MS}, settings={"talon[alpha=0.1]": {"alpha": 0.1}}
    )
    assert compare_paper.main([str(tmp_path / "sweep")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [error.startswith("error: ") for error in errors] == [True, True]
    assert "holds sweeps only" in errors[1]


def test_wrong_published_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no CSV files of published numbers"):
        load_published(tmp_path)
    (tmp_path / "odd.csv").write_text("source,mat\nX,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"odd\.csv has columns source, mat, expected source, table"):
        load_published(tmp_path)


def test_the_shape_names_the_methods_of_each_pair(tmp_path: Path, published: pd.DataFrame) -> None:
    """EAGLE-3 as its own paper runs it and as TALON's does differ in depth only."""
    times = TIMES | {"deep": [100.0] * 6}
    own = SETTINGS | {"deep": EAGLE | {"depth": 9, "label": "EAGLE-3 (depth 9)"}}
    table = shapes([load_run(write_run(tmp_path, times, settings=own))], published)
    assert table["methods"].tolist() == [
        f"{LABELS['talon']} / {LABELS['eagle3']}",
        f"{LABELS['talon']} / EAGLE-3 (depth 9)",
    ]
    assert table["ratio"].tolist() == pytest.approx([1.25, 2.5])
    assert shapes_text(table)["methods"].tolist() == table["methods"].tolist()


TRUNCATED = [
    ({"top_p": 0.9}, "top-p 0.9"),
    ({"top_k": 50}, "top-k 50"),
    ({"top_p": 0.9, "top_k": 50}, "top-p 0.9, top-k 50"),
]


@pytest.mark.parametrize(("cut", "text"), TRUNCATED)
def test_nothing_published_stands_beside_truncated_sampling(
    tmp_path: Path, cut: dict, text: str, published: pd.DataFrame, settings: pd.DataFrame
) -> None:
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64, "seed": 0}
    for name, decode in (("plain", plain), ("cut", plain | cut), ("greedy", plain | {"temperature": 0.0} | cut)):
        write_run(tmp_path / name, TIMES, target="vicuna-13b", settings=SETTINGS, decode=decode)
    runs = {name: load_run(tmp_path / name) for name in ("plain", "cut", "greedy")}
    assert same_cells([runs["cut"]], published).empty
    assert shapes([runs["cut"]], published)["targets"].tolist() == [0]
    for name, temperature in (("plain", "1"), ("greedy", "0")):
        assert not same_cells([runs[name]], published).empty
        assert shapes([runs[name]], published)["targets"].tolist() == [5]
        rows = setting_differences([runs[name]], settings).set_index("setting")
        assert rows.loc["temperature", "ours"] == temperature
    rows = setting_differences([runs["cut"]], settings).set_index("setting")
    assert rows.loc["temperature", "ours"] == f"1, {text}"
    assert f"here {text}: those runs stand alone." in compare_paper.comparison([runs["cut"]], published, settings)
    assert "stand alone" not in compare_paper.comparison([runs["plain"]], published, settings)
