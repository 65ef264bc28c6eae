"""Scoring from the command line: after a run, after a complete run, later from the records; and what is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis import score
from conftest import ToyFolders
from talon_bench.bench import Bench
from talon_bench.records import RunFolder
from talon_bench.scoring import run as scoring_run
from talon_bench.scoring.gsm8k import final_number
from toy_runs import QUESTIONS, CommandLine, toy_overrides

ROOT = Path(__file__).resolve().parents[1]
METHODS = ["ar", "eagle3_small", "talon_small"]
DATABASE = {
    "db_id": "woods",
    "table_names": ["tree"],
    "table_names_original": ["tree"],
    "column_names": [[-1, "*"], [0, "name"]],
    "column_names_original": [[-1, "*"], [0, "name"]],
    "column_types": ["text", "text"],
    "primary_keys": [],
    "foreign_keys": [],
}


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))


@pytest.fixture
def target(toy_folders: ToyFolders) -> str:
    return str(toy_folders.target("llama"))


def write_spider(data: Path) -> None:
    """A Spider of two questions on the one database `woods`."""
    folder = data / "spider"
    (folder / "database" / "woods").mkdir(parents=True)
    with sqlite3.connect(folder / "database" / "woods" / "woods.sqlite") as connection:
        connection.executescript("CREATE TABLE tree (name TEXT); INSERT INTO tree VALUES ('oak'), ('elm');")
    connection.close()
    queries = ["SELECT name FROM tree", "SELECT count(*) FROM tree"]
    rows = [{"db_id": "woods", "question": "Trees?", "query": query} for query in queries]
    (folder / "dev.json").write_text(json.dumps(rows))
    (folder / "tables.json").write_text(json.dumps([DATABASE]))


class Says:
    """A tokenizer under which every answer is one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.text

    def get_chat_template(self, chat_template: str | None) -> str:
        return ""

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: object) -> str:
        return messages[-1]["content"]


def test_a_run_with_scoring_on_ends_with_its_scores(cli: CommandLine, target: str) -> None:
    from transformers import AutoTokenizer

    plain = cli()
    assert "scores" not in plain.last
    assert not (plain.folder / "scores.json").exists()
    scored = cli("scoring=on", "run.fresh=true")
    assert (scored.status, scored.notes) == (0, [])
    assert scored.folder == plain.folder, "scoring is no part of what a run measures"
    last = scored.last
    assert list(last) == [*plain.last, "scores"]
    assert last["scores"]["scorer"] == "exact match"
    assert list(last["scores"]["methods"]) == METHODS
    tokenizer = AutoTokenizer.from_pretrained(target)
    turns = pq.read_table(scored.folder / "turns.parquet").to_pylist()
    texts = [tokenizer.decode(row["output_ids"], skip_special_tokens=True) for row in turns]
    rows = pq.read_table(scored.folder / "scores.parquet").to_pylist()
    assert [(row["prompt_id"], row["method"]) for row in rows] == [(row["prompt_id"], row["method"]) for row in turns]
    assert [row["correct"] for row in rows] == [final_number(text) == "1" for text in texts]
    correct = sum(row["correct"] for row in rows if row["method"] == "ar")
    for entry in last["scores"]["methods"].values():
        assert entry == {
            "answers": len(QUESTIONS),
            "correct": correct,
            "score": correct / len(QUESTIONS),
            "differing_from_ar": 0,
        }
    assert f"scoring {len({(row['prompt_id'], *row['output_ids']) for row in turns})} distinct answers" in scored.err
    table = scored.out.splitlines()[:-1]
    assert any(line.strip() == "gsm8k: exact match" for line in table)
    assert max(map(len, table)) <= 100


def test_a_complete_run_is_scored_without_being_measured(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cli("dataset.limit=1")
    before = {file.name: file.read_bytes() for file in plain.folder.glob("*.parquet")}
    monkeypatch.setattr(Bench, "measure", lambda *_: pytest.fail("measured again"))
    scored = cli("dataset.limit=1", "scoring=on")
    assert scored.status == 0
    assert {name: (plain.folder / name).read_bytes() for name in before} == before
    assert scored.last["scores"]["methods"]["ar"]["answers"] == 1
    assert {**scored.last, "scores": None} == {**plain.last, "scores": None}


def test_nothing_is_scored_without_being_asked(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_run, "make_scorer", lambda *_: pytest.fail("a scorer was made"))
    for override in ("scoring=off", "scoring.enabled=false"):
        assert cli("dataset.limit=1", "lineup=baseline", override).status == 0


def test_a_conversation_is_not_scored_and_no_error(cli: CommandLine) -> None:
    result = cli("dataset=mt_bench", "dataset.limit=1", "lineup=baseline", "scoring=on")
    assert (result.status, result.notes) == (0, [])
    assert "mt_bench has no scorer: its answers are not scored" in result.err.splitlines()
    assert result.last["scores"] == {"scorer": None, "methods": {}}


def test_spider_is_scored_by_execution(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One measured run, scored again for every text that its answers might have been."""
    write_spider(tmp_path / "data")
    for text, correct, outcomes in (
        ("```sql\nSELECT tree.name FROM tree;\n```", 1, {"passed": 2, "wrong answer": 2}),
        ("count(*) FROM tree", 1, {"wrong answer": 2, "passed": 2}),
        ("```sql\nDROP TABLE tree\n```", 0, {"refused: not a read": 4}),
        ("No idea.", 0, {"no query found": 4}),
    ):
        monkeypatch.setattr(scoring_run, "load_tokenizer", lambda target, text=text: Says(text))
        result = cli("dataset=spider", "lineup=baseline", "scoring=on", "decode.max_new_tokens=4")
        assert (result.status, result.notes) == (0, [])
        assert {entry["correct"] for entry in result.last["scores"]["methods"].values()} == {correct}
        scores = pd.read_parquet(result.folder / "scores.parquet")
        assert scores["outcome"].value_counts().to_dict() == outcomes
        assert set(scores["how"]) == {"execution"}
        facts = json.loads((result.folder / "scores.json").read_text())
        assert facts["guards"]["read-only database"] is True
        assert str(tmp_path) not in json.dumps(facts)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.root=null"], "error: scoring Spider needs its databases: set data.root to the folder that holds"),
        ([], "error: data.root has no spider/database: take the folder"),
        (["scoring.workers=0"], "error: scoring.workers is 0; give 1 or more"),
        (["+scoring.wokers=1"], "error: unknown key scoring.wokers; expected one of enabled, memory_mb"),
    ],
)
def test_what_scoring_lacks_is_said_before_the_measurement(
    cli: CommandLine, tmp_path: Path, overrides: list[str], message: str
) -> None:
    write_spider(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "spider" / "database")
    result = cli("dataset=spider", "scoring=on", *overrides)
    assert (result.status, len(result.notes), result.out) == (2, 1, "")
    assert result.notes[0].startswith(message)
    assert not (tmp_path / "runs").exists()


def test_runs_are_scored_later_from_their_records(cli: CommandLine, target: str, tmp_path: Path) -> None:
    wired = cli("scoring=on", "dataset.limit=2")
    verdicts = (wired.folder / "scores.parquet").read_bytes()
    for name in ("scores.parquet", "scores.json"):
        (wired.folder / name).unlink()
    other = cli("dataset=mt_bench", "dataset.limit=1", "lineup=baseline", "decode.max_new_tokens=4")
    arguments = ["--data", str(tmp_path / "data"), "--tokenizer", target, "--out", str(tmp_path / "out")]
    assert score.main([str(tmp_path / "runs"), *arguments]) == 0
    lines = cli.capture.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {
        "schema": 1,
        "runs": {str(wired.folder): wired.last["scores"], str(other.folder): {"scorer": None, "methods": {}}},
    }
    assert (wired.folder / "scores.parquet").read_bytes() == verdicts
    assert lines[0].startswith("| target")
    assert len([line for line in lines if line.startswith("| toy")]) == len(METHODS)
    assert any(line == "- toy / mt_bench: not scored." for line in lines)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["scores.csv", "scores.md", "scores.tex"]


def test_a_run_without_a_scorer_needs_neither_data_nor_tokenizer(cli: CommandLine, tmp_path: Path) -> None:
    folder = cli("dataset=mt_bench", "dataset.limit=1", "lineup=baseline", "decode.max_new_tokens=4").folder
    assert score.main([str(folder)]) == 0
    captured = cli.capture.readouterr()
    assert json.loads(captured.out) == {"schema": 1, "runs": {str(folder): {"scorer": None, "methods": {}}}}
    assert captured.err == "mt_bench has no scorer: its answers are not scored\n"
    assert json.loads((folder / "scores.json").read_text())["scorer"] is None


def test_scoring_later_says_what_it_lacks(cli: CommandLine, target: str, tmp_path: Path) -> None:
    folder = cli("dataset.limit=1", "lineup=baseline").folder
    data, own = ["--data", str(tmp_path / "data")], ["--tokenizer", target]

    def refused(*arguments: str) -> str:
        assert score.main([str(folder), *arguments]) == 2
        captured = cli.capture.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert not (folder / "scores.json").exists()
        return captured.err

    assert refused(*own).startswith("error: gsm8k/test.jsonl was a local file: give its folder, --data FOLDER")
    assert refused(*data).startswith("error: target toy was a local folder, which records do not name: give it, --tok")
    assert refused(*data, "--tokenizer", str(tmp_path / "none")).startswith("error: toy: there is no folder")
    assert refused(*data, "--tokenizer", str(tmp_path / "data")).startswith("error: target toy: its tokenizer cannot")
    assert refused(*data, *own, "--workers", "0") == "error: scoring.workers is 0; give 1 or more\n"
    held = RunFolder(folder, json.loads((folder / "run.json").read_text())["identity"])
    assert "is being written by another process" in refused(*data, *own)
    held.close()
    with (tmp_path / "data" / "gsm8k" / "test.jsonl").open("a") as file:
        file.write("\n")
    assert "was measured on gsm8k/test.jsonl with sha256" in refused(*data, *own)
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "status": "running"}))
    assert "has status 'running', expected 'complete': resume the run" in refused(*data, *own)
    (folder / "run.json").write_text(json.dumps({**info, "config": {}}))
    assert "run.json lacks its data set's configuration" in refused(*data, *own)
    (folder / "run.json").unlink()
    assert refused(*data, *own).startswith("error: no run.json at or below")


def test_the_makefile_scores_the_runs_that_it_is_given() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")

    def make(*arguments: str) -> subprocess.CompletedProcess:
        command = ["make", "--no-print-directory", "-n", "score", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = make("RUNS=some runs", "DATA=folder", "ARGS=--workers 4")
    assert "-m analysis.score some runs --data folder --workers 4" in " ".join(done.stdout.split())
    missing = make()
    assert missing.returncode != 0
    assert "set RUNS to the folder of one or more runs" in missing.stderr
