"""`analysis.lossless` counts from hand-made records, finished and unfinished."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis import lossless


def write(folder: Path, name: str, rows: list[tuple[str, bool | None, float | None]]) -> None:
    """One answer per method: (method, equals_ar, margin), in a file of the run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    info = {
        "target": "toy",
        "dataset": {"name": "gsm8k"},
        "provenance": {"dtype": "float32", "git_commit": "c0ffee"},
        "methods": {"ar": {}, "talon": {}},
    }
    (folder / "run.json").write_text(json.dumps(info))
    frame = pd.DataFrame(rows, columns=["method", "equals_ar", "margin"]).astype({"equals_ar": "object"})
    (folder / name).parent.mkdir(exist_ok=True)
    frame.assign(new_tokens=7).to_parquet(folder / name)


def test_equal_answers_are_counted_by_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [("ar", True, None), ("talon", True, None)]
    write(tmp_path / "a", "turns.parquet", [*pair, ("ar", True, None), ("talon", False, 0.25), ("talon", None, None)])
    write(tmp_path / "b", "parts/000000.turns.parquet", pair)
    out = tmp_path / "summary.json"
    assert lossless.main([str(tmp_path), "--out", str(out)]) == 0
    finished, unfinished = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == [finished, unfinished]
    assert (finished["answers"], finished["tokens"], finished["equal"]) == (2, 14, {"ar": 2, "talon": 1})
    assert finished["largest_margin"] == 0.25
    assert (unfinished["answers"], unfinished["equal"]) == (1, {"ar": 1, "talon": 1})
    assert unfinished["largest_margin"] is None


def test_a_folder_without_answers_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lossless.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: no answers at or below")
