"""Rows of every data set, written for this project in the shape of the published files and of the hub's copies."""

from __future__ import annotations

import json
from pathlib import Path

from omegaconf import OmegaConf

from talon_bench.paths import shipped
from talon_bench.prompts.config import DatasetConfig
from talon_bench.prompts.prompt import Prompt

CONCERT = {
    "db_id": "choir",
    "table_names": ["singer", "song list"],
    "table_names_original": ["singer", "song list"],
    "column_names": [[-1, "*"], [0, "id"], [0, "name"], [1, "singer id"], [1, "title (short)"]],
    "column_names_original": [[-1, "*"], [0, "ID"], [0, "Name"], [1, "Singer_ID"], [1, "Title_(short)"]],
    "column_types": ["text", "number", "text", "number", "text"],
    "primary_keys": [1],
    "foreign_keys": [[3, 1]],
}
KEPT = {key: CONCERT[key] for key in ("db_id", "table_names_original", "column_names_original", "foreign_keys")}
TABLES = [{**CONCERT, "db_id": "other"}, CONCERT]


def _task(number: int, **fields) -> dict:
    tests = [f"assert f({number}) == {number}", "assert f(0) == 0", "assert f(1) == 1"]
    row = {"text": f"Return {number}.", "code": f"def f(x):\r\n    return {number}", "task_id": number}
    return {**row, "test_setup_code": "", "test_list": tests, "challenge_test_list": [], **fields}


def _sanitized(row: dict) -> dict:
    kept = {key: row[key] for key in ("task_id", "code", "test_list")}
    imports = [row["test_setup_code"]] if row["test_setup_code"] else []
    return {"source_file": "x.ipynb", "prompt": row["text"], "test_imports": imports, **kept}


def _said(role: str, value: str) -> dict:
    return {"from": role, "value": value}


MBPP = [
    *(_task(number) for number in (2, 3, 4)),
    _task(11, test_setup_code="import math", challenge_test_list=["assert f(2) == 2", "assert f(3) == 3"]),
    _task(510),
    _task(511),
]
SHAREGPT = [
    {"id": "a_0", "conversations": [_said("human", "Hi"), _said("gpt", "Hello"), _said("user", "More\n")]},
    {"id": "b_1", "conversations": [_said("gpt", "cut off"), _said("system", "Be kind"), _said("human", "And then?")]},
    {"id": "c_0", "conversations": [_said("gpt", "only an answer"), _said("bing", "b"), _said("chatgpt", "c")]},
    {"id": "d_0", "conversations": []},
    {"id": "e_0", "conversations": [_said("human", " "), _said("bard", "?"), _said("human", "Now really")]},
    {"id": "a_0", "conversations": [_said("human", "The same id again")]},
]
ROWS: dict[str, list[dict]] = {
    "mt_bench": [
        {"question_id": 81, "category": "stem", "turns": ["Why is ice light?", "And iron?"]},
        {"question_id": 82, "category": "math", "turns": ["1 + 1?", "2 + 2?"], "reference": ["2", ""]},
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
    "mbpp": MBPP,
    "mbpp_sanitized": [_sanitized(row) for row in MBPP],
    "spider": [
        {"db_id": "choir", "query": "SELECT count(*) FROM singer", "question": "How many singers?", "sql": {"from": {}}}
    ],
    "sharegpt": SHAREGPT,
    "sharegpt_multi": SHAREGPT,
    "alpaca": [
        {"instruction": "Name a tree.", "input": "", "output": "Oak"},
        {"instruction": "Translate.", "input": "Haus", "output": ""},
    ],
    "qa": [{"question": "where is it", "answer": ["here", "there"]}, {"question": "Is it?", "answer": ["yes"]}],
    "cnn_dm": [{"article": "It rained. Then not.", "highlights": "Rain .\nSun .", "id": "f00"}],
    "spec_bench": [
        {"question_id": 81, "category": "stem", "turns": ["Why?", "Really?"]},
        {"question_id": 161, "category": "translation", "turns": ["Translate: Ja"], "reference": ["Yes"]},
        {"question_id": 481, "category": "rag", "turns": ["Facts.\nWho?"], "reference": [["A", "B"]]},
    ],
}
HUB_ROWS: dict[str, list[dict]] = {
    **ROWS,
    "mt_bench": [
        {"prompt_id": 70077, "category": "stem", "prompt": ["Why is ice light?", "And iron?"], "reference": []},
        {"prompt_id": 4711, "category": "math", "prompt": ["1 + 1?", "2 + 2?"], "reference": ["2", ""]},
    ],
    "spider": [{key: value for key, value in ROWS["spider"][0].items() if key != "sql"} | {"query_toks": ["SELECT"]}],
    "alpaca": [{**row, "text": "Below is an instruction"} for row in ROWS["alpaca"]],
}
_ASK = "You are an expert Python programmer, and here is your task: Return {0}. Your code should pass these tests:\n\n"
_TESTS = "assert f({0}) == {0}\nassert f(0) == 0\nassert f(1) == 1"


def asked(number: int) -> str:
    """The question of MBPP row `number` in the paper's wording."""
    return (_ASK + _TESTS).format(number)


def _mbpp(number: int, setup: str = "", challenge: str = "") -> Prompt:
    reference = {"task_id": str(number), "code": f"def f(x):\r\n    return {number}", "setup": setup}
    tests = {"tests": _TESTS.format(number), "challenge_tests": challenge}
    return Prompt(str(number), "coding", (asked(number),), reference | tests)


EXPECTED: dict[str, tuple[Prompt, ...]] = {
    "mt_bench": (
        Prompt("81", "stem", ("Why is ice light?", "And iron?"), {}),
        Prompt("82", "math", ("1 + 1?", "2 + 2?"), {"turn_1": "2"}),
    ),
    "gsm8k": (
        Prompt("gsm8k-0000", "math", ("Two pens at $3?",), {"answer": ROWS["gsm8k"][0]["answer"], "final": "6"}),
        Prompt("gsm8k-0001", "math", ("A house?",), {"answer": "It costs\n#### -1,234,567", "final": "-1234567"}),
    ),
    "humaneval": (
        Prompt("T/0", "coding", ("Complete the code I provided.\ndef one():\n",), dict(ROWS["humaneval"][0])),
    ),
    "mbpp": (_mbpp(11, "import math", "assert f(2) == 2\nassert f(3) == 3"), _mbpp(510)),
    "mbpp_sanitized": (_mbpp(11, "import math"), _mbpp(510)),
    "spider": (
        Prompt(
            "spider-0000",
            "sql",
            (
                "/* Given the following database schema: */\n"
                "CREATE TABLE singer (\n  ID number,\n  Name text,\n  PRIMARY KEY (ID)\n);\n\n"
                'CREATE TABLE "song list" (\n  Singer_ID number,\n  "Title_(short)" text,\n'
                "  FOREIGN KEY (Singer_ID) REFERENCES singer(ID)\n);\n\n"
                "/* Answer the following: How many singers? */\nSELECT ",
            ),
            {"db_id": "choir", "query": "SELECT count(*) FROM singer", "schema": json.dumps(KEPT)},
        ),
    ),
    "sharegpt": (
        Prompt("a_0", "chat", ("Hi",)),
        Prompt("b_1", "chat", ("And then?",)),
        Prompt("e_0", "chat", ("Now really",)),
    ),
    "sharegpt_multi": (
        Prompt("a_0", "chat", ("Hi", "More\n")),
        Prompt("b_1", "chat", ("And then?",)),
        Prompt("e_0", "chat", ("Now really",)),
    ),
    "alpaca": (
        Prompt("alpaca-00000", "instruction", ("Name a tree.",), {"turn_1": "Oak"}),
        Prompt("alpaca-00001", "instruction", ("Translate.",), {}),
    ),
    "qa": (
        Prompt("qa-0000", "qa", ("Where is it?",), {"answers": '["here", "there"]'}),
        Prompt("qa-0001", "qa", ("Is it?",), {"answers": '["yes"]'}),
    ),
    "cnn_dm": (
        Prompt("cnn_dm-00000", "summarization", ("Summarize: It rained. Then not.",), {"turn_1": "Rain .\nSun ."}),
    ),
    "spec_bench": (
        Prompt("81", "mt_bench", ("Why?", "Really?"), {}),
        Prompt("161", "translation", ("Translate: Ja",), {"turn_1": "Yes"}),
        Prompt("481", "rag", ("Facts.\nWho?",), {"turn_1": '["A", "B"]'}),
    ),
}
LEFT_OUT = {"sharegpt": 3, "sharegpt_multi": 3}


def config(shipped_name: str, **overrides) -> DatasetConfig:
    """The shipped config of a data set, through OmegaConf as in a run."""
    base = OmegaConf.structured(DatasetConfig)
    yaml = OmegaConf.load(shipped("conf") / "dataset" / f"{shipped_name}.yaml")
    return OmegaConf.to_object(OmegaConf.merge(base, yaml, overrides))


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write_tables(root: Path, tables: list[dict] = TABLES) -> None:
    """Spider's tables.json, which every row of it needs."""
    (root / "tables.json").write_text(json.dumps(tables))


class FakeBuilder:
    """Stands for the hub's builder of a data set with these rows."""

    hash = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, rows: list[dict], split: str) -> None:
        self.rows, self.split, self.ready = rows, split, False

    def download_and_prepare(self) -> None:
        self.ready = True

    def as_dataset(self, split: str) -> list[dict]:
        assert self.ready
        assert split == self.split
        return self.rows
