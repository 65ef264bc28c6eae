"""Loading runs, the notes under every table and the end of a run: what is refused and what is said."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from run_records import AR_MS, FAST_MS, MS, alter_turns, write_run
from talon_bench.errors import UsageError
from talon_bench.report import console
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.notes import notes


def test_load_reads_types_and_order(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a"))
    assert (run.target, run.dataset, run.baseline_again) == ("smollm2-135m", "gsm8k", "ar_again")
    assert list(run.summaries) == list(MS)
    assert run.turns["method"].dtype == "category"
    assert isinstance(run.rounds["widths"].dtype, pd.ArrowDtype)
    assert len(run.rounds) == 6 * (8 + 8 + 4 + 4 + 4)


def test_load_runs_finds_every_folder_below(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "deep" / "b"), write_run(tmp_path / "a")]
    assert [run.path for run in load_runs(tmp_path)] == sorted(folders)
    assert [run.path for run in load_runs([folders[0]])] == [folders[0]]


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"schema": 7}, "has schema 7, expected 1"),
        ({"status": "running"}, "has status 'running', expected 'complete'"),
    ],
)
def test_load_refuses_what_it_would_misread(tmp_path: Path, info: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        load_run(write_run(tmp_path, **info))
    assert "\n" not in str(error.value)


def test_load_reads_a_running_run_on_request(tmp_path: Path) -> None:
    write_run(tmp_path, status="running")
    assert len(load_runs(tmp_path, allow_running=True)) == 1


def test_load_names_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run\.json at or below"):
        load_runs(tmp_path)
    with pytest.raises(UsageError, match=r"run\.json does not exist"):
        load_run(tmp_path)
    write_run(tmp_path)
    (tmp_path / "rounds.parquet").unlink()
    with pytest.raises(UsageError, match=r"lacks rounds\.parquet"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="is no JSON"):
        load_run(tmp_path)


def test_load_refuses_records_that_contradict_each_other(tmp_path: Path) -> None:
    write_run(tmp_path)
    alter_turns(tmp_path, new_tokens=12)
    with pytest.raises(UsageError, match="p0 turn 0 method talon has 4 rounds, 8 tokens, expected 4 rounds, 11 tokens"):
        load_run(tmp_path)
    write_run(tmp_path)
    alter_turns(tmp_path, method="eagle3")
    with pytest.raises(UsageError, match="two rows for one"):
        load_run(tmp_path)


def test_load_accepts_failed_turns_without_numbers(tmp_path: Path) -> None:
    write_run(tmp_path)
    alter_turns(
        tmp_path,
        status="failed",
        new_tokens=0,
        rounds=0,
        decode_ms=None,
        equals_ar=None,
        error="out of memory",
    )
    row = load_run(tmp_path).summaries["talon"]
    assert (row.failed, row.turns, row.speedup) == (1, 5, pytest.approx(2.0))


def test_notes_say_what_a_reader_must_know(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, differs=1, busy=True, source="samples"))
    text = "\n".join(notes([run]))
    for term in ("MAT: ", "η (eta): ", "the head's first one over the prompt", "Speedup: ", "95 % paired bootstrap"):
        assert term in text
    for part in (
        "Test CPU, 4 cores, 2 threads",
        "float32",
        "torch 2.13.0",
        "commit 0123456789ab;",
        "n = 6 prompts",
    ):
        assert part in text
    assert "max_new_tokens 64; temperature 0." in text
    assert "gsm8k: Prompts are the project's own samples, not the published data set." in text
    assert "smollm2-135m / gsm8k 2.5 % (" in text
    assert "Busy machine during smollm2-135m / gsm8k (load 0.2 before, 5.5 after)" in text
    differing = "smollm2-135m / gsm8k: prompts that differ from AR: TALON_x 50% & more 1 of 6; largest logit margin"
    assert f"{differing} at a first divergence 0.0125." in text
    assert "†: not lossless" in text


def test_notes_keep_quiet_about_what_did_not_happen(tmp_path: Path) -> None:
    text = "\n".join(notes([load_run(write_run(tmp_path, {"ar": AR_MS, "talon": FAST_MS}))]))
    for term in ("own samples", "A/A", "Busy", "failed", "differ from", "†"):
        assert term not in text


def test_notes_count_what_was_not_measured(tmp_path: Path) -> None:
    write_run(tmp_path)
    alter_turns(tmp_path, status="skipped", new_tokens=0, rounds=0, decode_ms=None, equals_ar=None)
    assert "TALON_x 50% & more: 0 turns failed, 1 skipped, 5 measured." in "\n".join(notes([load_run(tmp_path)]))


def test_notes_name_the_sampling(tmp_path: Path) -> None:
    text = "\n".join(notes([load_run(write_run(tmp_path, temperature=0.7))]))
    assert "temperature 0.7, top-p 1.0, top-k 0, seed 0." in text


def test_console_table_fits_100_columns(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, {name: [1000 * x for x in times] for name, times in MS.items()}))
    output = io.StringIO()
    table = console.summary_table(list(run.summaries.values()), run.labels, title="smollm2-135m / gsm8k")
    Console(file=output, width=100).print(table)
    text = output.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    line = next(line for line in text.splitlines() if "TALON" in line)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "TALON_x 50% & more",
        "2.00 [2.00, 2.00]",
        "2.00",
        "2.00",
        "0.2",
        "1.58",
        "5.0 %",
        "6/6",
    ]


def test_final_json_is_valid_and_exact(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, {"ar": [80.0], "talon": [40.0]}, differs=0))
    result = console.final_json(
        list(run.summaries.values()), run_dir="outputs/x", target="t", heads=["a", "b"], dataset="gsm8k"
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == {
        "schema": 1,
        "run_dir": "outputs/x",
        "target": "t",
        "head": "a+b",
        "dataset": "gsm8k",
        "methods": {
            "ar": {
                "mat": 1.0,
                "eta": 0.0,
                "tokens_per_second": 100.0,
                "speedup": 1.0,
                "speedup_ci95": [1.0, 1.0],
                "turns": 1,
                "lossless": True,
                "overhead_share": 0.05,
            },
            "talon": {
                "mat": 2.0,
                "eta": 2.0,
                "tokens_per_second": 200.0,
                "speedup": 2.0,
                "speedup_ci95": [None, None],
                "turns": 1,
                "lossless": False,
                "overhead_share": 0.05,
            },
        },
    }
