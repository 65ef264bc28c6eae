"""Many records to the main table: the generated runs hold what they should, and a small number of them is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import aggregate
from talon_bench.records import ROUNDS, TURNS
from talon_bench.report.load import load_runs
from talon_bench.report.tables import main_table


def test_generated_runs_follow_the_schema_and_aggregate(tmp_path: Path) -> None:
    rows = aggregate.write_runs(tmp_path, 100_000, 2)
    assert rows == pytest.approx(100_000, rel=0.02)
    files = sorted(tmp_path.rglob("*.parquet"))
    assert [pq.read_schema(file).equals(schema) for file, schema in zip(files, [ROUNDS, TURNS] * 2, strict=True)] == [
        True
    ] * 4
    assert sum(pq.read_metadata(file).num_rows for file in files[::2]) == rows
    runs = load_runs(tmp_path)
    frame = main_table(runs)
    assert frame["set0"]["mat"].tolist() == pytest.approx([1, 1, 512 / 171, 4, 4])
    assert frame["set1"]["eta"].tolist() == [0, 0, 6, 8, 4]
    assert frame["mean"]["mat"].tolist() == pytest.approx([1, 1, 512 / 171, 4, 4])
    times = runs[0].rounds.groupby("method", observed=True)[["draft_ms", "verify_ms", "other_ms"]].sum().sum(axis=1)
    assert frame["set0"]["speedup"].droplevel("target")["talon"] == pytest.approx(times["ar"] / times["talon"])


def test_the_command_prints_one_line_and_keeps_its_memory_small() -> None:
    """A fiftieth of the full size within the memory that grows with it; even a busy machine needs less than the full limit."""
    command = [sys.executable, "-m", "benchmarks.aggregate", "--rounds", "200000", "--runs", "2"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["runs"] == 2
    assert result["seconds"] < 60
    assert result["peak_rss_mib"] < 4096 / 50 + 500


@pytest.mark.parametrize("bound", ["seconds", "peak_rss_mib"])
def test_a_result_beyond_a_bound_is_status_1(
    bound: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(aggregate.BOUNDS, bound, 0)
    monkeypatch.setattr(aggregate, "in_a_process_of_its_own", lambda root: {"seconds": 3, "peak_rss_mib": 200})
    assert aggregate.main(["--rounds", "2000", "--runs", "1"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)[bound] > 0
    assert captured.err == f"{bound} is {json.loads(captured.out)[bound]}, expected at most 0\n"
