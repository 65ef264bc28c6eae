"""Ablations and draft efficiency from hand-made records, and the command that writes every table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from analysis import tables as command
from run_records import AR_MS, FAST_MS, LABELS, SLOW_MS, write_run
from talon_bench.report.ablation import ablation_notes, ablation_table
from talon_bench.report.efficiency import efficiency_table, efficiency_text
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.sweeps import families
from talon_bench.stats import RESAMPLES


def write_sweep(folder: Path, field: str, times: dict, base: str = "talon", **options: object) -> Path:
    """A sweep of `field`: decode times by value, AR beside them."""
    names = {value: f"{base}[{field}={value}]" for value in times}
    ms = {"ar": AR_MS} | {names[value]: list(ms) for value, ms in times.items()}
    fixed = {"head": "eagle3", "budget": 60, "root_top_k": 10, "alpha": 0.03, "init_layers": 1}
    settings = {name: fixed | {field: value} for value, name in names.items()}
    return write_run(folder, ms, settings=settings, **options)


@pytest.mark.parametrize(
    ("field", "values"),
    [("alpha", (0.5, 0.01)), ("budget", (60, 16)), ("root_top_k", (20, 5)), ("init_layers", (3, 0)), ("depth", (8, 4))],
)
def test_ablation_of_any_setting(tmp_path: Path, field: str, values: tuple) -> None:
    """Rows by rising value, whatever order they ran in."""
    write_sweep(
        tmp_path / "a", field, {values[0]: SLOW_MS, values[1]: FAST_MS}, counts={f"talon[{field}={values[0]}]": [8] * 6}
    )
    write_sweep(tmp_path / "b", field, {values[0]: SLOW_MS, values[1]: [20.0] * 6}, dataset="qa")
    runs = load_runs(tmp_path)
    assert list(families(runs)) == [field]
    frame = ablation_table(runs, field)
    assert frame.index.names == ["target", field]
    assert list(frame.index) == [("smollm2-135m", values[1]), ("smollm2-135m", values[0])]
    assert frame["gsm8k"]["speedup"].tolist() == pytest.approx([2.0, 1.6])
    assert frame["gsm8k"]["mat"].tolist() == [2.0, 1.0]
    assert frame["gsm8k"]["eta"].tolist() == [2.0, 2.0]
    assert frame["qa"]["speedup"].tolist() == pytest.approx([4.0, 1.6])
    assert frame["mean"]["speedup"].tolist() == pytest.approx([3.0, 1.6])
    assert frame["mean"]["best"].tolist() == frame["gsm8k"]["best"].tolist() == [True, False]
    others = {"budget": 60, "root_top_k": 10, "alpha": 0.03, "init_layers": 1}
    shared = ", ".join(f"{key} {value}" for key, value in others.items() if key != field)
    assert ablation_notes(runs, field) == [f"Rows: talon by {field}, with {shared}, head toy-eagle3."]


def test_ablation_marks_no_best_among_equals(tmp_path: Path) -> None:
    write_sweep(tmp_path, "alpha", {0.1: [35.0, 46.0] * 3, 0.2: FAST_MS})
    assert not ablation_table(load_runs(tmp_path), "alpha")["gsm8k"]["best"].any()


def test_ablation_keeps_methods_and_settings_apart(tmp_path: Path) -> None:
    """A value that one run lacks stays open; another temperature and another method are rows of their own."""
    write_sweep(tmp_path / "a", "budget", {16: FAST_MS, 60: SLOW_MS})
    write_sweep(tmp_path / "b", "budget", {60: SLOW_MS}, dataset="qa")
    write_sweep(tmp_path / "c", "budget", {60: FAST_MS}, temperature=1.0)
    write_sweep(tmp_path / "d", "budget", {60: AR_MS}, base="eagle3", dataset="qa")
    frame = ablation_table([load_run(tmp_path / name) for name in "abc"], "budget")
    assert list(frame.index) == [
        ("smollm2-135m (T = 0)", 16),
        ("smollm2-135m (T = 0)", 60),
        ("smollm2-135m (T = 1)", 60),
    ]
    assert pd.isna(frame["qa"]["speedup"].iloc[0])
    assert frame["mean"]["speedup"].tolist() == pytest.approx([np.nan, 1.6, np.nan], nan_ok=True)
    frame = ablation_table([load_run(tmp_path / name) for name in "ad"], "budget")
    assert list(frame.index) == [
        ("smollm2-135m, talon", 16),
        ("smollm2-135m, talon", 60),
        ("smollm2-135m, eagle3", 60),
    ]


def test_efficiency_by_hand(tmp_path: Path) -> None:
    """16 tokens in 4 + 8 rounds, 2 draft passes in each of the first four and 1 in the others.

    Draws are (1, 1), (1, 2) twice and (2, 2): MAT 2, 4/3, 1 and eta 2, 4/3, 1.
    """
    folder = write_run(
        tmp_path, {"ar": [80.0, 80.0], "talon": [40.0, 50.0]}, counts={"talon": [4, 8]}, passes={"talon": [2, 1]}
    )
    table = efficiency_table([load_run(folder)])
    assert table["method"].tolist() == [LABELS["talon"]], "AR drafts nothing"
    row = table.iloc[0]
    assert row[["MAT", "MAT low", "MAT high"]].tolist() == pytest.approx([4 / 3, 1, 2])
    assert row[["eta", "eta low", "eta high"]].tolist() == pytest.approx([4 / 3, 1, 2])
    gamma = (0.25 * 90 / 16) / (0.95 * 160 / 16)
    predicted = (4 / 3) / (1 + gamma * 4 / 3)
    assert row["gamma"] == pytest.approx(gamma)
    assert row["predicted"] == pytest.approx(predicted)
    assert row[["speedup", "CI low", "CI high"]].tolist() == pytest.approx([160 / 90, 1.6, 2.0])
    assert row["measured/predicted"] == pytest.approx(160 / 90 / predicted)
    assert efficiency_text(table).iloc[0].tolist() == [
        *("smollm2-135m", "gsm8k", LABELS["talon"], "1.33 [1.00, 2.00]", "1.33 [1.00, 2.00]", "0.148"),
        *("1.11", "1.78 [1.60, 2.00]", "1.60"),
    ]


def test_efficiency_intervals_agree_with_scipy(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    counts, passes = rng.integers(3, 9, 50), rng.integers(1, 6, 50)
    ms = {"ar": [80.0] * 50, "talon": [40.0] * 50}
    run = load_run(write_run(tmp_path, ms, counts={"talon": counts.tolist()}, passes={"talon": passes.tolist()}))
    row = efficiency_table([run]).iloc[0]
    for name, totals in (("MAT", np.full(50, 8)), ("eta", counts * passes)):
        expected = scipy.stats.bootstrap(
            (totals, counts),
            lambda top, rounds, axis: top.sum(axis) / rounds.sum(axis),
            paired=True,
            vectorized=True,
            method="percentile",
            n_resamples=RESAMPLES,
            rng=np.random.default_rng(9),
        ).confidence_interval
        assert row[name] == pytest.approx(totals.sum() / counts.sum())
        tolerance = 0.04 * (expected.high - expected.low)  # four standard errors, as in test_stats
        assert row[[f"{name} low", f"{name} high"]].tolist() == pytest.approx(list(expected), abs=tolerance)


def test_efficiency_without_draft_passes(tmp_path: Path) -> None:
    """Prompt lookup has no gamma and is predicted at its MAT; a lossy method carries its mark; repeats are left blank."""
    folder = write_run(
        tmp_path, {"ar": AR_MS, "talon": FAST_MS, "medusa": [20.0] * 6}, passes={"talon": [0] * 6, "medusa": [1] * 6}
    )
    table = efficiency_table([load_run(folder)])
    assert table["method"].tolist() == [LABELS["talon"], "Medusa †"]
    assert pd.isna(table["gamma"].iloc[0])
    assert table[["eta", "predicted", "measured/predicted"]].iloc[0].tolist() == [0.0, 2.0, 1.0]
    text = efficiency_text(table)
    assert text[["target", "dataset"]].to_numpy().tolist() == [["smollm2-135m", "gsm8k"], ["", ""]]
    assert text["gamma"].iloc[0] == "n/a"


def test_the_command_writes_what_the_runs_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sweeps stay out of the main table; runs of AR alone have no efficiency."""
    write_sweep(tmp_path / "runs" / "a", "alpha", {0.1: FAST_MS, 0.5: SLOW_MS})
    out = tmp_path / "out"
    sweep = {f"{stem}.{form}" for stem in ("ablation_alpha", "efficiency") for form in ("csv", "md", "tex")}
    sweep |= {"ablation_alpha_detail.csv", "ablation_alpha_detail.md"}
    assert command.main([str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert {file.name for file in out.iterdir()} == sweep | {"tables.tex"}
    write_run(tmp_path / "runs" / "b")
    assert command.main([str(tmp_path / "runs"), "--out", str(out)]) == 0
    main = {"table2.csv", "table2.md", "table2.tex", "table2_detail.csv", "table2_detail.md"}
    assert {file.name for file in out.iterdir()} == sweep | main | {"tables.tex"}
    assert "[b]" not in (out / "table2.csv").read_text(encoding="utf-8")
    assert "alpha=0.1" not in (out / "table2.csv").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert (out / "efficiency.md").read_text(encoding="utf-8") in printed
    assert "## ablation_alpha" in printed
    first = {file.name: file.read_bytes() for file in out.iterdir()}
    assert command.main([str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} == first
    write_run(tmp_path / "alone", {"ar": AR_MS})
    assert command.main([str(tmp_path / "alone"), "--out", str(tmp_path / "few")]) == 0
    assert {file.name for file in (tmp_path / "few").iterdir()} == main | {"tables.tex"}


def test_the_command_without_runs_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_ablation_csv_reads_back(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", "alpha", {0.001: FAST_MS, 0.5: SLOW_MS})
    command.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    back = pd.read_csv(tmp_path / "out" / "ablation_alpha.csv", comment="#")
    assert back["alpha"].tolist() == [0.001, 0.5]
    assert back["gsm8k speedup"].tolist() == pytest.approx([2.0, 1.6])
    assert "| 0.001 " in (tmp_path / "out" / "ablation_alpha.md").read_text(encoding="utf-8")
    efficiency = pd.read_csv(tmp_path / "out" / "efficiency.csv", comment="#")
    assert efficiency["measured/predicted"].tolist() == pytest.approx(
        [1 + 2 * 2.5 / 19, 1.6 / (2 / (1 + 2 * 3.125 / 19))]
    )


def test_two_methods_swept_on_one_data_set_stand_one_after_the_other(tmp_path: Path) -> None:
    """The method tells them apart, not their folders; those of a repeated sweep do."""
    write_sweep(tmp_path / "a", "budget", {16: FAST_MS, 60: SLOW_MS})
    write_sweep(tmp_path / "b", "budget", {16: SLOW_MS, 60: FAST_MS}, base="eagle3")
    write_sweep(tmp_path / "c", "budget", {16: [20.0] * 6, 60: FAST_MS}, dataset="qa")
    frame = ablation_table(load_runs(tmp_path), "budget")
    assert list(frame.index) == [
        *(("smollm2-135m, talon", value) for value in (16, 60)),
        *(("smollm2-135m, eagle3", value) for value in (16, 60)),
    ]
    assert frame["gsm8k"]["speedup"].tolist() == pytest.approx([2.0, 1.6, 1.6, 2.0])
    assert frame["mean"]["speedup"].tolist() == pytest.approx([3.0, 1.8, np.nan, np.nan], nan_ok=True)
    write_sweep(tmp_path / "again", "budget", {16: [10.0] * 6}, base="eagle3")
    frame = ablation_table(load_runs(tmp_path), "budget")
    assert frame["gsm8k"]["speedup"].to_dict() == pytest.approx(
        {
            ("smollm2-135m, talon", 16): 2.0,
            ("smollm2-135m, talon", 60): 1.6,
            ("smollm2-135m [again], eagle3", 16): 8.0,
            ("smollm2-135m [b], eagle3", 16): 1.6,
            ("smollm2-135m [b], eagle3", 60): 2.0,
        }
    )


def test_efficiency_of_a_sweep_beside_a_line_up_needs_no_folders(tmp_path: Path) -> None:
    """Families stand one after the other; a heading is left out where the row above has it."""
    for dataset in ("gsm8k", "qa"):
        write_run(tmp_path / f"plain-{dataset}", {"ar": AR_MS, "talon": FAST_MS}, dataset=dataset)
    for base in ("talon", "eagle3"):
        write_sweep(tmp_path / base, "alpha", {0.1: FAST_MS, 0.5: SLOW_MS}, base=base)
    table = efficiency_table(load_runs(tmp_path))
    assert set(table["target"]) == {"smollm2-135m"}
    variants = [f"{base}[alpha={value}]" for base in ("eagle3", "talon") for value in (0.1, 0.5)]
    assert table["method"].tolist() == [LABELS["talon"], LABELS["talon"], *variants]
    places = efficiency_text(table)[["target", "dataset"]].to_numpy().tolist()
    named = [["smollm2-135m", "gsm8k"], ["smollm2-135m", "qa"], ["smollm2-135m", "gsm8k"]]
    assert places == [*named, *[["", ""]] * 3]


def test_efficiency_tells_repeated_rows_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_sweep(tmp_path / f"sweep-{name}", "alpha", {0.1: FAST_MS})
        write_run(tmp_path / f"plain-{name}", {"ar": AR_MS, "talon": FAST_MS})
    table = efficiency_table(load_runs(tmp_path))
    folders = ("plain-a", "plain-b", "sweep-a", "sweep-b")
    assert table["target"].tolist() == [f"smollm2-135m [{folder}]" for folder in folders]
