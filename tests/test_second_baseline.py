"""Speedup over AR launched kernel by kernel, beside that over AR: recomputed from the records, and where it is shown."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from conftest import ToyFolders
from run_records import AR_MS, FAST_MS, MS, alter_turns, write_run
from talon_bench import job
from talon_bench.compose import compose_config
from talon_bench.report import console, tables
from talon_bench.report.cells import CELLS
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.notes import EAGER_NOTE, notes
from talon_bench.report.page import page
from talon_bench.stats import RESAMPLES
from toy_runs import toy_overrides


def recomputed(folder: Path, baseline: str, method: str) -> tuple[float, np.ndarray]:
    """The speedup of the run's records and its bootstrap draws, from the Parquet file alone."""
    turns = pq.read_table(folder / "turns.parquet").to_pandas()
    turns = turns[turns["status"] == "ok"]
    turns["tokens"] = turns["new_tokens"] - 1
    sides = [turns[turns["method"] == name].set_index(["prompt_id", "turn"]) for name in (baseline, method)]
    both = sides[0].index.intersection(sides[1].index)
    sums = [side.loc[both].groupby("prompt_id", sort=False)[["decode_ms", "tokens"]].sum() for side in sides]
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(sums[0]), size=(RESAMPLES, len(sums[0])))
    (base_ms, base_tokens), (ms, tokens) = ((side["decode_ms"].to_numpy(), side["tokens"].to_numpy()) for side in sums)

    def rate(at: np.ndarray) -> np.ndarray:
        return base_ms[at].sum(-1) / base_tokens[at].sum(-1) * tokens[at].sum(-1) / ms[at].sum(-1)

    return float(rate(np.arange(len(ms)))), rate(picks)


@pytest.fixture
def with_eager(tmp_path: Path) -> Path:
    """Two data sets; AR launched kernel by kernel takes some 1.4 times as long as AR, and one answer of TALON failed."""
    rng = np.random.default_rng(5)
    for dataset, prompts in (("gsm8k", 12), ("qa", 9)):
        plain = rng.gamma(8, 10, prompts)
        times = {
            "ar": plain,
            "ar_eager": plain * rng.normal(1.4, 0.1, prompts),
            "talon": plain / rng.normal(2, 0.3, prompts),
        }
        ms = {name: list(values) for name, values in times.items()}
        write_run(tmp_path / dataset, ms, dataset=dataset, settings={"ar_eager": {"engine": "eager"}})
    alter_turns(
        tmp_path / "qa", status="failed", new_tokens=0, rounds=0, decode_ms=None, equals_ar=None, error="out of memory"
    )
    return tmp_path


@pytest.mark.parametrize(("baseline", "over"), [("ar", ""), ("ar_eager", " over ar_eager")])
def test_speedups_over_either_baseline_are_recomputed_from_the_records(
    with_eager: Path, baseline: str, over: str
) -> None:
    frame = tables.main_table(load_runs(with_eager)).droplevel("target")
    detail = tables.detail_table(load_runs(with_eager)).set_index(["dataset", "method"])
    labels = load_run(with_eager / "qa").labels
    for dataset in ("gsm8k", "qa"):
        for method, label in labels.items():
            found = frame.loc[label, dataset][[f"speedup{over}", f"ci_low{over}", f"ci_high{over}"]].tolist()
            if method == baseline:
                assert found == [1, 1, 1]
                continue
            value, draws = recomputed(with_eager / dataset, baseline, method)
            assert found == pytest.approx([value, *np.percentile(draws, [2.5, 97.5])], rel=1e-12)
            assert detail.loc[(dataset, label), f"speedup{over}"] == found[0]
    means = frame.loc[labels["talon"], "mean"]
    values = [recomputed(with_eager / dataset, baseline, "talon")[0] for dataset in ("gsm8k", "qa")]
    assert means[f"speedup{over}"] == pytest.approx(sum(values) / 2, rel=1e-12)
    assert means[f"ci_low{over}"] < means[f"speedup{over}"] < means[f"ci_high{over}"]
    assert frame.loc[labels[baseline], "mean"][f"ci_low{over}"] == 1


def test_the_second_baseline_stands_where_it_was_measured_only(with_eager: Path) -> None:
    plain = load_run(write_run(with_eager / "plain", {"ar": AR_MS, "talon": FAST_MS}, dataset="alpaca"))
    runs = load_runs(with_eager)
    frame = tables.main_table(runs)
    columns = {dataset: [name for name in frame[dataset] if "eager" in name] for dataset in frame.columns.unique(0)}
    names = ["speedup over ar_eager", "ci_low over ar_eager", "ci_high over ar_eager"]
    assert columns == {"alpaca": [], "gsm8k": names, "qa": names, "mean": []}, "alpaca lacks it, hence the mean does"
    assert "eager" not in tables.to_csv(tables.main_table([plain]), notes([plain]))
    assert "eager" not in " ".join(tables.detail_table([plain]))
    header = tables.to_markdown(frame).splitlines()[0]
    assert header.count("speedup vs AR eager [95 % CI]") == 2
    text = tables.to_latex(frame, notes(runs))
    assert text.count("& speedup & speedup vs AR eager & MAT") == 2
    assert r"\multicolumn{4}{c}{gsm8k}" in text
    assert "Speedup vs AR eager: " in "\n".join(notes(runs))
    failed = load_run(write_run(with_eager / "failed", {"ar": AR_MS, "ar_eager": AR_MS}, dataset="qa"))
    failed.turns.loc[failed.turns["method"] == "ar_eager", "status"] = "failed"
    assert list(tables.main_table([failed])["qa"]) == list(CELLS), "its own row says that it failed"


def test_the_report_page_shows_the_second_baseline_where_it_was_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {"ar": AR_MS, "ar_eager": [120.0] * 6, "talon": FAST_MS})
    write_run(tmp_path / "b", {"ar": AR_MS, "talon": FAST_MS}, dataset="qa")
    html = page(load_runs(tmp_path), tmp_path / "report.html")
    [results] = re.findall(r'<section id="results".*?</section>', html, re.DOTALL)
    assert re.findall(r'scope="colgroup" colspan="(\d)"', results) == ["4", "3", "3"], "gsm8k, qa, their mean"
    heads = [text.replace("\N{NO-BREAK SPACE}", " ") for text in re.findall(r'<th scope="col"[^>]*>([^<]*)', results)]
    plain = ["speedup [95 % CI]", "MAT", "η"]
    assert heads == ["method", plain[0], "speedup vs AR eager [95 % CI]", *plain[1:], *plain, *plain]
    rows = re.findall(r'<th scope="row">([^<]*)</th>(.*?)</tr>', results, re.DOTALL)
    cells = {name: re.findall(r"<td>(.*?)</td>", row) for name, row in rows}
    assert [len(row) for row in cells.values()] == [10] * 3
    assert cells["AR"][:4] == ["1.00", "1.50 [1.50, 1.50]", "1.00", "0.00"]
    assert cells["ar_eager"][:2] == ["0.67 [0.67, 0.67]", "1.00"]
    assert cells["TALON_x 50% &amp; more"][:2] == ["<strong>2.00 [2.00, 2.00]</strong>", "3.00 [3.00, 3.00]"]
    assert EAGER_NOTE in results


def test_console_table_shows_the_second_baseline_in_100_columns(tmp_path: Path) -> None:
    ms = {**MS, "ar_again": AR_MS, "ar_eager": [120.0] * 6}
    run = load_run(write_run(tmp_path, {name: [1000 * x for x in times] for name, times in ms.items()}))
    run.info["methods"]["talon"]["label"] = "TALON on EAGLE-2 (60 nodes)"
    output = io.StringIO()
    table = console.summary_table(list(run.summaries.values()), run.labels, "title", run.speedups["ar_eager"])
    Console(file=output, width=100).print(table)
    text = output.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert {word for label in run.labels.values() for word in label.split()} <= set(text.split()), "words stay whole"
    rows = [re.findall(r"\d\.\d\d \[.*?\]|\d\.\d\d(?= )", line)[:2] for line in text.splitlines() if "5.0 %" in line]
    assert rows == [
        ["1.00", "1.50 [1.50, 1.50]"],
        ["1.00", "1.50 [1.50, 1.50]"],
        ["1.60 [1.60, 1.60]", "2.40 [2.40, 2.40]"],
        ["2.00 [2.00, 2.00]", "3.00 [3.00, 3.00]"],
        ["4.00 [4.00, 4.00]", "6.00 [6.00, 6.00]"],
        ["0.67 [0.67, 0.67]", "1.00"],
    ]


def test_a_real_run_prints_the_second_baseline_where_it_has_it(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 1.0)
    overrides = [*toy_overrides(toy_folders, tmp_path), "dataset.limit=2"]
    job.run(compose_config(overrides))
    assert "eager" not in capsys.readouterr().out
    outcome = job.run(compose_config([*overrides, "+method@lineup.methods.ar_eager=ar_eager"]))
    assert "AR eager [95 % CI]" in capsys.readouterr().out
    run = load_run(outcome.result["run_dir"])
    assert list(run.speedups) == ["ar", "ar_eager"]
    assert run.speedups["ar"]["ar_eager"].value == pytest.approx(1 / run.speedups["ar_eager"]["ar"].value)
