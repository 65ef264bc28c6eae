"""Rows of every data set: the same prompts from the hub's form and the published one, and broken rows named."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.sets import dataset_names
from dataset_rows import CONCERT, EXPECTED, HUB_ROWS, LEFT_OUT, ROWS, FakeBuilder, config, jsonl, write_tables
from talon_bench.errors import UsageError
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.prompt import PromptSet
from talon_bench.prompts.source import load_prompts


def local(root: Path, name: str, rows: list[dict], **overrides) -> PromptSet:
    dataset = config(name, **overrides)
    dataset.files = ["rows.jsonl"]
    (root / "rows.jsonl").write_bytes(jsonl(rows))
    return load_prompts(dataset, DataConfig(root=str(root)))


@pytest.mark.parametrize("name", [name for name in dataset_names() if name != "spec_bench"])
def test_hub_rows_and_local_rows_give_the_same_prompts(tmp_path, monkeypatch, name):
    write_tables(tmp_path)
    dataset = config(name)
    builder = FakeBuilder(HUB_ROWS[name], dataset.hub.split)
    monkeypatch.setattr("talon_bench.prompts.hub.resolve", lambda hub: hub.revision)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda path, **rest: builder)
    hub = load_prompts(dataset, DataConfig(root=str(tmp_path), source="hub"))
    own = local(tmp_path, name, ROWS[name])
    assert hub.prompts == own.prompts == EXPECTED[name]
    assert hub.left_out == own.left_out == LEFT_OUT.get(name, 0)
    assert (hub.source, own.source) == ("hub", "local")


def test_spec_bench_rows(tmp_path):
    assert local(tmp_path, "spec_bench", ROWS["spec_bench"]).prompts == EXPECTED["spec_bench"]


def test_the_split_picks_by_id_and_keeps_the_order(tmp_path):
    def ids(**overrides) -> list[str]:
        return [prompt.id for prompt in local(tmp_path, "mbpp", ROWS["mbpp"], **overrides).prompts]

    assert ids() == ["11", "510"]
    assert ids(split="all") == ["2", "3", "4", "11", "510", "511"]
    assert ids(split=None) == ["11", "510"], "the first split is the default"


def test_rows_outside_the_split_are_checked_as_well(tmp_path):
    with pytest.raises(UsageError, match=r"^rows\.jsonl line 6: field 'code': expected text, found nothing"):
        local(tmp_path, "mbpp", [*ROWS["mbpp"][:5], {**ROWS["mbpp"][5], "code": None}])


def test_repeated_ids_are_left_out_only_where_the_published_file_has_them(tmp_path):
    assert local(tmp_path, "sharegpt", ROWS["sharegpt"][:1] * 3).left_out == 2
    with pytest.raises(UsageError, match="found the id 11 a second time"):
        local(tmp_path, "mbpp", [ROWS["mbpp"][3]] * 2)


def test_eagles_rows_are_taken_by_the_sets_that_have_no_other_local_file(tmp_path):
    row = {"question_id": 321, "category": "", "turns": ["Who?"], "reference": ["He"]}
    for name, category in (("alpaca", "instruction"), ("qa", "qa"), ("cnn_dm", "summarization")):
        (prompt,) = local(tmp_path, name, [row]).prompts
        assert (prompt.id, prompt.category, prompt.turns) == ("321", category, ("Who?",))
        assert prompt.reference == {"turn_1": "He"}


MT, MBPP, SHARE = ROWS["mt_bench"][0], ROWS["mbpp"][3], ROWS["sharegpt"][0]
BROKEN = [
    ("mt_bench", {"question_id": 1, "category": "stem"}, "field 'turns': expected a list of texts, found nothing"),
    ("mt_bench", {**MT, "turns": ["a"]}, "field 'turns': expected 2 turns, found 1"),
    ("mt_bench", {**MT, "turns": ["a", " "]}, "field 'turns': expected text in every turn"),
    ("mt_bench", {**MT, "turns": ["a", 2]}, "field 'turns': expected texts in the list, found int"),
    ("mt_bench", {**MT, "category": None}, "field 'category': expected text, found nothing"),
    ("mt_bench", {"category": "x", "turns": ["a", "b"]}, "field 'question_id': expected a number or text"),
    ("mt_bench", {**MT, "question_id": True}, "field 'question_id': .* found bool"),
    ("mt_bench", {**MT, "reference": "r"}, "field 'reference': expected a list of answers, found text"),
    ("mt_bench", {**MT, "reference": [["a", 1]]}, "field 'reference': expected texts or lists of texts"),
    ("gsm8k", {"question": "q", "answer": "no number"}, "field 'answer': expected '#### <number>'"),
    ("gsm8k", {"question": "q", "answer": "#### 5 apples"}, "field 'answer'"),
    ("gsm8k", {"question": "\n", "answer": "#### 5"}, "field 'question': expected text, found an empty text"),
    ("humaneval", {**ROWS["humaneval"][0], "test": None}, "field 'test': expected text, found nothing"),
    ("humaneval", {**ROWS["humaneval"][0], "prompt": ["x"]}, "field 'prompt': expected text, found list"),
    ("mbpp", {**MBPP, "task_id": "11"}, "field 'task_id': expected a whole number, found text"),
    ("mbpp", {**MBPP, "test_list": "assert f(1)"}, "field 'test_list': expected a list of texts, found text"),
    ("mbpp", {**MBPP, "test_setup_code": []}, "field 'test_setup_code': expected text or nothing, found list"),
    ("mbpp", {**MBPP, "challenge_test_list": [1]}, "field 'challenge_test_list': expected texts in the list"),
    (
        "mbpp",
        {**MBPP, "test_list": ["assert f(1) == 1", "assert f("]},
        "field 'test_list': .* error in line 2 of the te",
    ),
    ("mbpp", {**MBPP, "test_list": ["assert f('\0')"]}, "field 'test_list': expected Python, found a syntax error"),
    ("mbpp", {**MBPP, "task_id": 511, "test_list": ["f is 1 2"]}, "field 'test_list': expected Python"),
    ("mbpp_sanitized", {**ROWS["mbpp_sanitized"][3], "test_list": ["return"]}, "field 'test_list': expected Python"),
    ("mbpp_sanitized", {**ROWS["mbpp_sanitized"][3], "prompt": ""}, "field 'prompt': expected text, found an empty"),
    ("mbpp_sanitized", {**ROWS["mbpp_sanitized"][3], "test_imports": None}, "field 'test_imports': expected a list"),
    ("spider", {**ROWS["spider"][0], "db_id": "gone"}, "field 'db_id': found no schema of gone in tables.json"),
    ("spider", {**ROWS["spider"][0], "db_id": ["x"]}, "field 'db_id': expected text, found list"),
    ("spider", {**ROWS["spider"][0], "question": None}, "field 'question': expected text, found nothing"),
    ("spider", {**ROWS["spider"][0], "query": " "}, "field 'query': expected text, found an empty text"),
    ("sharegpt", {**SHARE, "conversations": "hi"}, "field 'conversations': expected a list of turns, found text"),
    ("sharegpt", {**SHARE, "conversations": [{"from": "human"}]}, "field 'conversations': expected objects with"),
    ("sharegpt", {**SHARE, "conversations": ["hi"]}, "field 'conversations': expected objects with"),
    ("sharegpt", {**SHARE, "conversations": [{"from": "oracle", "value": "v"}]}, "expected 'from' to be one of"),
    ("sharegpt", {**SHARE, "id": None}, "field 'id': expected text, found nothing"),
    ("alpaca", {"instruction": "", "output": "x"}, "field 'instruction': expected text, found an empty text"),
    ("alpaca", {"instruction": "a", "input": 5}, "field 'input': expected text or nothing, found int"),
    ("alpaca", {"question_id": 1, "turns": ["a", "b"]}, "field 'turns': expected 1 turn, found 2"),
    ("qa", {"question": "a"}, "field 'answer': expected a list of texts, found nothing"),
    ("qa", {"question_id": 1, "turns": []}, "field 'turns': expected text in every turn, found no turn"),
    ("cnn_dm", {"highlights": "a"}, "field 'article': expected text, found nothing"),
    ("spec_bench", {"question_id": 1, "turns": ["a"]}, "field 'category': expected text, found nothing"),
]


@pytest.mark.parametrize(("name", "row", "message"), BROKEN)
def test_a_broken_row_is_named_by_file_line_and_field(tmp_path, name, row, message):
    write_tables(tmp_path)
    dataset = config(name)
    dataset.files = ["rows.jsonl"]
    (tmp_path / "rows.jsonl").write_bytes(jsonl([ROWS[name][-3:][0]]) + b"\n" + jsonl([row]))
    with pytest.raises(UsageError, match=rf"^rows.jsonl line 3: .*{message}") as caught:
        load_prompts(dataset, DataConfig(root=str(tmp_path)))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        {"column_names_original": [[0, "ID"]]},
        {"column_names_original": None},
        {"primary_keys": [99]},
        {"foreign_keys": [3]},
        {"table_names_original": [1, 2]},
        {"column_types": []},
    ],
)
def test_a_broken_schema_is_named(tmp_path, damage):
    write_tables(tmp_path, [{**CONCERT, **damage}])
    with pytest.raises(UsageError, match=r"line 1: field 'db_id': the schema of choir in tables\.json is broken"):
        local(tmp_path, "spider", ROWS["spider"])


def test_spider_without_schemas_says_where_they_are(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"looked for spider/tables\.json, tables\.json; take .* taoyds/spider"):
        local(tmp_path, "spider", ROWS["spider"])
    builder = FakeBuilder(HUB_ROWS["spider"], "validation")
    monkeypatch.setattr("talon_bench.prompts.hub.resolve", lambda hub: None)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda path, **rest: builder)
    with pytest.raises(
        UsageError, match=r"needs spider/tables\.json beside its rows, which the hub lacks: set data.root"
    ):
        load_prompts(config("spider"), DataConfig(source="hub"))
