"""The main and the detail table: their numbers, their intervals, and the mark of the best."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from run_records import AR_MS, FAST_MS, LABELS, MS, SLOW_MS, alter_turns, write_run
from talon_bench.report import tables
from talon_bench.report.load import load_run, load_runs
from talon_bench.stats import RESAMPLES


def test_main_table_numbers(tmp_path: Path) -> None:
    """AR 80 ms, AR again 82 on average, EAGLE-3 50, TALON 40, Medusa 20."""
    frame = tables.main_table([load_run(write_run(tmp_path))])
    labels = ["AR", "AR again", "EAGLE-3 (budget 60)", "TALON_x 50% & more", "Medusa †"]
    assert list(frame.index) == [("smollm2-135m", label) for label in labels]
    cells = frame["gsm8k"].droplevel("target")
    assert cells["speedup"].tolist() == pytest.approx([1.0, 80 / 82, 1.6, 2.0, 4.0])
    assert cells["mat"].tolist() == [1, 1, 2, 2, 2]
    assert cells["eta"].tolist() == [0, 0, 2, 2, 2]
    assert cells.loc["TALON_x 50% & more", ["ci_low", "ci_high"]].tolist() == pytest.approx([2.0, 2.0])
    assert cells["best"].tolist() == [False, False, False, True, False]


def test_no_best_without_separation(tmp_path: Path) -> None:
    """EAGLE-3's total is larger, but prompt by prompt it wins as often as it loses."""
    ms = {"ar": AR_MS, "eagle3": [35.0, 46.0] * 3, "talon": FAST_MS}
    run = load_run(write_run(tmp_path, ms))
    assert max(run.summaries.values(), key=lambda row: row.speedup).method == "talon"
    assert tables.best_method(run) is None


def test_ar_can_be_the_best_and_one_prompt_has_none(tmp_path: Path) -> None:
    slow = {"ar": AR_MS, "ar_again": [78.0, 83.0] * 3, "talon": [160.0] * 6}
    assert tables.best_method(load_run(write_run(tmp_path / "slow", slow))) == "ar"
    single = load_run(write_run(tmp_path / "one", {"ar": [80.0], "talon": [40.0]}))
    assert tables.best_method(single) is None
    assert tables.best_method(load_run(write_run(tmp_path / "alone", {"ar": AR_MS}))) is None
    assert "2.00 [n/a]" in tables.to_markdown(tables.main_table([single]))


def test_runs_fill_columns_and_leave_unknown_cells_open(tmp_path: Path) -> None:
    write_run(tmp_path / "a", dataset="gsm8k")
    write_run(tmp_path / "b", {"ar": AR_MS, "talon": FAST_MS}, dataset="alpaca")
    frame = tables.main_table(load_runs(tmp_path))
    assert list(frame.columns.unique(0)) == ["alpaca", "gsm8k", "mean"], "the order of the paper's tables"
    row = frame.loc[("smollm2-135m", "EAGLE-3 (budget 60)")]
    assert row["gsm8k", "speedup"] == pytest.approx(1.6)
    assert pd.isna(row["alpaca", "speedup"])
    assert not row["alpaca", "best"]
    assert "| n/a" in tables.to_markdown(frame)


def test_runs_of_one_cell_never_overwrite_each_other(tmp_path: Path) -> None:
    for name, temperature in (("a", 0.0), ("b", 1.0), ("c", 1.0)):
        write_run(tmp_path / name, temperature=temperature)
    heads = ["smollm2-135m (T = 0)", "smollm2-135m (T = 1) [b]", "smollm2-135m (T = 1) [c]"]
    assert tables.row_groups(load_runs(tmp_path)) == heads
    frame = tables.main_table(load_runs(tmp_path)[::-1])
    assert len(frame) == 3 * len(MS)
    assert frame.index.unique("target")[0] == heads[0], "T = 0 stands first"


def test_methods_with_one_label_are_told_apart(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    run.info["methods"]["eagle3"]["label"] = LABELS["talon"]
    assert run.labels["talon"] == "TALON_x 50% & more [talon]"
    assert len(tables.main_table([run])) == len(MS)


def test_detail_table(tmp_path: Path) -> None:
    row = tables.detail_table([load_run(write_run(tmp_path, differs=2))]).set_index("method").loc["TALON_x 50% & more"]
    assert (row["prompts"], row["turns"], row["failed"], row["skipped"]) == (6, 6, 0, 0)
    assert (row["MAT"], row["eta"], row["tokens/s"], row["speedup"]) == (2.0, 2.0, pytest.approx(200.0), 2.0)
    gamma = (10 / 8) / (76 / 8)
    assert row["gamma"] == pytest.approx(gamma)
    assert row["predicted"] == pytest.approx(2 / (1 + 2 * gamma))
    assert row["measured/predicted"] == pytest.approx(1 + 2 * gamma)
    assert row[["draft share", "verify share", "other share"]].tolist() == pytest.approx([0.25, 0.7, 0.05])
    assert (row["equal to AR"], row["worst margin"]) == ("5 of 6", 0.0125)
    assert (row["budget"], row["settings"], row["dtype"], row["temperature"]) == (
        60,
        "alpha=0.03",
        "float32",
        0.0,
    )
    assert (row["head"], row["head sha256"]) == ("toy-eagle3", "ab" * 6)


def scipy_interval(statistic: Callable, *samples: np.ndarray, paired: bool) -> tuple[float, float]:
    found = scipy.stats.bootstrap(
        samples,
        statistic,
        paired=paired,
        vectorized=True,
        method="percentile",
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(17),
    ).confidence_interval
    return float(found.low), float(found.high)


def assert_close(found: tuple[float, float], expected: tuple[float, float]) -> None:
    """Ends agree within four standard errors of the difference of two such percentiles."""
    assert found == pytest.approx(expected, abs=0.04 * (expected[1] - expected[0]))


@pytest.fixture
def noisy(tmp_path: Path) -> tuple[Path, dict[str, dict[str, np.ndarray]]]:
    """Two runs of 40 and 30 prompts whose times vary, and their times by data set and method."""
    rng = np.random.default_rng(3)
    times = {}
    for dataset, prompts in (("gsm8k", 40), ("qa", 30)):
        plain = rng.gamma(8, 10, prompts)
        times[dataset] = {"ar": plain, "talon": plain / rng.normal(1.9, 0.4, prompts).clip(1)}
        write_run(tmp_path / dataset, {name: list(ms) for name, ms in times[dataset].items()}, dataset=dataset)
    return tmp_path, times


def test_intervals_agree_with_scipy(noisy: tuple[Path, dict]) -> None:
    folder, times = noisy
    row = tables.main_table(load_runs(folder)).iloc[1]
    for dataset, ms in times.items():
        assert row[dataset, "speedup"] == pytest.approx(ms["ar"].sum() / ms["talon"].sum())
        expected = scipy_interval(lambda a, b, axis: a.sum(axis) / b.sum(axis), ms["ar"], ms["talon"], paired=True)
        assert_close((row[dataset, "ci_low"], row[dataset, "ci_high"]), expected)


def test_the_interval_of_the_mean_agrees_with_scipy(noisy: tuple[Path, dict]) -> None:
    """scipy draws the prompts of the two data sets independently, as indices."""
    folder, times = noisy
    one, two = times.values()

    def statistic(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        ratios = (ms["ar"][at].sum(axis) / ms["talon"][at].sum(axis) for ms, at in ((one, first), (two, second)))
        return sum(ratios) / 2

    row = tables.main_table(load_runs(folder)).iloc[1]["mean"]
    expected = scipy_interval(statistic, np.arange(40), np.arange(30), paired=False)
    assert row["speedup"] == pytest.approx(sum(ms["ar"].sum() / ms["talon"].sum() for ms in (one, two)) / 2)
    assert_close((row["ci_low"], row["ci_high"]), expected)


def test_mean_by_hand(tmp_path: Path) -> None:
    """gsm8k draws (1, 1), (1, 2) twice, (2, 2): ratios 2, 4/3, 4/3, 1; qa is 2 throughout."""
    write_run(tmp_path / "a", {"ar": [80.0, 80.0], "talon": [40.0, 80.0]})
    write_run(tmp_path / "b", {"ar": [80.0, 80.0], "talon": [40.0, 40.0]}, dataset="qa", counts={"talon": [8, 8]})
    frame = tables.main_table(load_runs(tmp_path))
    assert frame.iloc[0]["mean"].tolist() == [1, 1, 1, 1, 0, False]
    row = frame.iloc[1]["mean"]
    assert row[["speedup", "ci_low", "ci_high"]].tolist() == pytest.approx([5 / 3, 1.5, 2.0])
    assert (row["mat"], row["eta"], row["best"]) == (1.5, 2.0, True)


def test_data_sets_are_drawn_independently(tmp_path: Path) -> None:
    """All three at their lowest, 1, has probability 1/64; 10/9 is the 2.5 % point. Equal draws would give 1."""
    for dataset in ("alpaca", "gsm8k", "qa"):
        write_run(tmp_path / dataset, {"ar": [80.0, 80.0], "talon": [40.0, 80.0]}, dataset=dataset)
    row = tables.main_table(load_runs(tmp_path)).iloc[1]["mean"]
    assert row[["speedup", "ci_low"]].tolist() == pytest.approx([4 / 3, 10 / 9])


def test_best_mean_needs_a_paired_difference(tmp_path: Path) -> None:
    """TALON leads EAGLE-3 on every prompt though both vary tenfold; then it leads on half of them only."""
    plain = [80.0] * 6
    eagle = [80.0, 8.0, 40.0, 16.0, 60.0, 10.0]
    for name, talon in (
        ("paired", [ms / 1.1 for ms in eagle]),
        ("mixed", [ms * f for ms, f in zip(eagle, [0.8, 1.2] * 3, strict=True)]),
    ):
        for dataset in ("gsm8k", "qa"):
            write_run(tmp_path / name / dataset, {"ar": plain, "eagle3": eagle, "talon": talon}, dataset=dataset)
    paired, mixed = (tables.main_table(load_runs(tmp_path / name))["mean"] for name in ("paired", "mixed"))
    assert paired["best"].tolist() == [False, False, True]
    assert paired["ci_low"].iloc[2] < paired["speedup"].iloc[1], "the methods' own intervals overlap"
    assert mixed["best"].tolist() == [False, False, False]


def test_mean_is_open_where_a_data_set_is_missing(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", {"ar": AR_MS, "talon": FAST_MS, "medusa": [20.0] * 6}, dataset="qa")
    write_run(tmp_path / "c", {"ar": AR_MS, "talon": FAST_MS}, target="qwen3-8b", dataset="qa")
    frame = tables.main_table(load_runs(tmp_path))
    means = frame.loc["smollm2-135m", "mean"]
    assert means["speedup"].dropna().to_dict() == {"AR": 1.0, LABELS["talon"]: 2.0, "Medusa †": 4.0}
    assert means["best"].to_dict() == {label: label == LABELS["talon"] for label in means.index}, "Medusa is lossy"
    assert frame.loc["qwen3-8b", "mean"]["speedup"].isna().all(), "a single data set has no mean"


def test_mean_counts_turns_that_both_completed(tmp_path: Path) -> None:
    """Without the prompt that TALON failed, AR takes 400 ms for five prompts, TALON 200."""
    for dataset in ("gsm8k", "qa"):
        write_run(tmp_path / dataset, {"ar": [800.0, *AR_MS[1:]], "talon": FAST_MS}, dataset=dataset)
        alter_turns(
            tmp_path / dataset, status="failed", new_tokens=0, rounds=0, decode_ms=None, equals_ar=None, error="oom"
        )
    row = tables.main_table(load_runs(tmp_path)).iloc[1]["mean"]
    assert row[["speedup", "ci_low", "ci_high"]].tolist() == pytest.approx([2, 2, 2])


def test_a_single_prompt_leaves_the_mean_without_an_interval(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {"ar": [80.0], "talon": [40.0]})
    write_run(tmp_path / "b", {"ar": AR_MS, "talon": FAST_MS}, dataset="qa")
    row = tables.main_table(load_runs(tmp_path)).iloc[1]["mean"]
    assert row["speedup"] == 2.0
    assert np.isnan(row["ci_low"])
    assert not row["best"]


def lose_a_prompt(folder: Path) -> None:
    """TALON's first turn failed."""
    alter_turns(folder, status="failed", new_tokens=0, rounds=0, decode_ms=None, equals_ar=None, error="oom")


@pytest.mark.parametrize("lost", [False, True])
def test_a_slower_method_is_never_best_for_its_prompts(tmp_path: Path, lost: bool) -> None:
    """Without the first prompt TALON's speedup is 2.0; EAGLE-3's is 3.4 with it, but 1.6 on the prompts of both."""
    plain, eagle, talon = [800.0, *AR_MS[1:]], [100.0, *SLOW_MS[1:]], [90.0, *FAST_MS[1:]]
    for dataset in ("gsm8k", "qa"):
        write_run(tmp_path / dataset, {"ar": plain, "eagle3": eagle, "talon": talon}, dataset=dataset)
        if lost:
            lose_a_prompt(tmp_path / dataset)
    frame = tables.main_table(load_runs(tmp_path))
    speedups = frame["gsm8k"]["speedup"].tolist()
    assert speedups == pytest.approx([1, 1200 / 350, 2.0 if lost else 1200 / 290])
    for dataset in ("gsm8k", "qa", "mean"):
        assert frame[dataset]["best"].tolist() == [False, False, not lost], dataset


def test_a_slow_method_that_failed_a_prompt_leaves_the_best_its_mark(tmp_path: Path) -> None:
    for dataset in ("gsm8k", "qa"):
        write_run(tmp_path / dataset, {"ar": AR_MS, "eagle3": FAST_MS, "talon": SLOW_MS}, dataset=dataset)
        lose_a_prompt(tmp_path / dataset)
    frame = tables.main_table(load_runs(tmp_path))
    for dataset in ("gsm8k", "qa", "mean"):
        assert frame[dataset]["best"].tolist() == [False, True, False], dataset


def test_methods_with_a_single_prompt_in_common_have_no_best_mean(tmp_path: Path) -> None:
    """Of two prompts TALON lost one, so a single one is left to compare on; the columns' intervals need two as well."""
    for dataset in ("gsm8k", "qa"):
        write_run(tmp_path / dataset, {"ar": [80.0] * 2, "eagle3": [40.0] * 2, "talon": [50.0] * 2}, dataset=dataset)
        lose_a_prompt(tmp_path / dataset)
    frame = tables.main_table(load_runs(tmp_path))
    assert not frame.xs("best", axis=1, level=1).any(axis=None)
