"""The samples that ship here, and the published files where they are at hand."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from data_prep.sets import dataset_names, forms
from dataset_rows import config
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.humaneval import INSTRUCTION
from talon_bench.prompts.prompt import PromptSet
from talon_bench.prompts.source import load_prompts
from talon_bench.prompts.spider import create_tables

SHARED = Path(os.environ.get("TALON_BENCH_SHARED", Path(__file__).resolve().parents[1].parent / "shared")) / "data"


@pytest.mark.parametrize("name", dataset_names())
def test_each_set_has_twelve_samples(name):
    found = load_prompts(config(name), DataConfig(source="samples"))
    assert (found.source, found.origin, found.available) == ("samples", f"samples/{name}.jsonl", 12)


def test_mt_bench_samples_cover_the_eight_categories():
    found = load_prompts(config("mt_bench"), DataConfig(source="samples"))
    categories = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
    assert {prompt.category for prompt in found.prompts} == categories


def test_gsm8k_samples_add_up():
    for prompt in load_prompts(config("gsm8k"), DataConfig(source="samples")).prompts:
        steps = re.findall(r"([\d./*+() -]+) = \$?<<([\d./*+()-]+)=([\d.]+)>>([\d,.]*\d)", prompt.reference["answer"])
        assert len(steps) == prompt.reference["answer"].count("<<") >= 2
        for shown, sum_, value, written in steps:
            assert shown.replace(" ", "") == sum_
            assert eval(sum_) == pytest.approx(float(value), abs=1e-9)
            assert written.replace(",", "") == value
        assert steps[-1][2] == prompt.reference["final"]


def test_humaneval_samples_run_and_their_tests_can_fail():
    for prompt in load_prompts(config("humaneval"), DataConfig(source="samples")).prompts:
        task = prompt.reference
        call = f"\n{task['test']}\ncheck({task['entry_point']})\n"
        exec(task["prompt"] + task["canonical_solution"] + call, {})
        with pytest.raises(AssertionError):
            exec(task["prompt"] + "    return None\n" + call, {})


@pytest.mark.parametrize("name", ["mbpp", "mbpp_sanitized"])
def test_mbpp_samples_pass_their_tests_which_can_fail(name):
    found = load_prompts(config(name, split="all"), DataConfig(source="samples"))
    assert found.available == 15, "12 tasks, and three that the paper's form shows"
    for prompt in found.prompts:
        task = prompt.reference
        tests = f"\n{task['setup']}\n{task['tests']}\n{task['challenge_tests']}\n"
        exec(task["code"] + tests, {})
        name_of_function = re.search(r"def (\w+)", task["code"])[1]
        with pytest.raises((AssertionError, TypeError)):
            exec(f"def {name_of_function}(*values):\n    return None\n{tests}", {})


def test_spider_samples_run_on_the_databases_that_their_prompts_describe():
    file = Path(__file__).resolve().parents[1] / "src" / "talon_bench" / "samples" / "spider_tables.jsonl"
    schemas = {row["db_id"]: row for row in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    for prompt in load_prompts(config("spider"), DataConfig(source="samples")).prompts:
        statements = create_tables(schemas[prompt.reference["db_id"]])
        assert all(statement in prompt.turns[0] for statement in statements)
        with sqlite3.connect(":memory:") as database:
            database.executescript("\n".join(statements))
            database.execute(prompt.reference["query"])
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []


def test_spec_bench_samples_are_two_of_each_task():
    found = load_prompts(config("spec_bench"), DataConfig(source="samples"))
    tasks = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
    assert Counter(prompt.category for prompt in found.prompts) == dict.fromkeys(tasks, 2)


# The published files


def shared(name: str, **overrides) -> PromptSet:
    if not SHARED.is_dir():
        pytest.skip("the published data files are not on this machine (TALON_BENCH_SHARED)")
    return load_prompts(config(name, **overrides), DataConfig(root=str(SHARED)))


@pytest.mark.parametrize(
    ("name", "overrides", "rows", "turns"),
    [
        ("mt_bench", {}, 80, 160),
        ("gsm8k", {}, 1319, 1319),
        ("humaneval", {}, 164, 164),
        ("mbpp", {}, 500, 500),
        ("mbpp", {"split": "all"}, 974, 974),
        ("mbpp_sanitized", {}, 257, 257),
        ("mbpp_sanitized", {"split": "all"}, 427, 427),
        ("spider", {}, 1034, 1034),
        ("sharegpt", {}, 490, 490),
        ("sharegpt_multi", {}, 33, 33),
        ("spec_bench", {}, 480, 560),
        ("mt_bench", {"variant": "eagle80"}, 80, 160),
        *((name, {"variant": "eagle80"}, 80, 80) for name in ("alpaca", "cnn_dm", "gsm8k", "humaneval", "qa")),
    ],
)
def test_every_published_row_goes_through_its_loader(name, overrides, rows, turns):
    found = shared(name, **overrides)
    assert (found.available, len(found.prompts), found.left_out) == (rows, rows, 0)
    assert sum(len(prompt.turns) for prompt in found.prompts) == turns


@pytest.mark.parametrize("form", list(forms(dataset_names())), ids=lambda form: form.title)
def test_every_form_of_the_published_files_is_published_and_has_one_prompt_an_id(form):
    found = shared(form.dataset.name, variant=form.dataset.variant, split=form.dataset.split)
    assert form.published(found)
    assert len({prompt.id for prompt in found.prompts}) == found.available
    assert all(turn.strip() for prompt in found.prompts for turn in prompt.turns)


def test_published_mt_bench_has_ten_conversations_a_category():
    assert set(Counter(prompt.category for prompt in shared("mt_bench").prompts).values()) == {10}


def test_published_spec_bench_has_80_prompts_a_task():
    counts = Counter(prompt.category for prompt in shared("spec_bench").prompts)
    assert sorted(counts) == ["math_reasoning", "mt_bench", "qa", "rag", "summarization", "translation"]
    assert set(counts.values()) == {80}


def test_humaneval_of_the_package_is_the_published_file():
    assert load_prompts(config("humaneval"), DataConfig(source="package")).prompts == shared("humaneval").prompts


def turns(name: str, **overrides) -> set[str]:
    return {turn for prompt in shared(name, **overrides).prompts for turn in prompt.turns}


@pytest.mark.parametrize("name", ["gsm8k", "humaneval", "mt_bench", "alpaca", "qa", "cnn_dm"])
def test_eagles_turns_are_those_of_the_default_form_to_the_byte(name):
    assert turns(name, variant="eagle80") <= turns(name)


def test_eagles_humaneval_rows_are_scored_like_the_published_problems():
    published = {prompt.turns: prompt.reference for prompt in shared("humaneval").prompts}
    for prompt in shared("humaneval", variant="eagle80").prompts:
        assert prompt.reference == published[prompt.turns]


def test_spec_bench_asks_the_same_forms():
    spec_bench = turns("spec_bench")
    assert turns("gsm8k", variant="spec_bench") <= turns("gsm8k") & spec_bench
    assert len(turns("gsm8k", variant="spec_bench") & turns("gsm8k", variant="eagle80")) < 80
    for name in ("mt_bench", "qa", "cnn_dm"):
        assert turns(name) <= spec_bench


@pytest.mark.parametrize("name", ["mbpp", "mbpp_sanitized"])
def test_no_example_of_mbpps_paper_form_is_measured(name):
    found = shared(name, variant="paper3", split="all")
    assert not {"2", "3", "4"} & {prompt.id for prompt in found.prompts}
    assert (found.left_out, found.available) == (3, shared(name, split="all").available - 3)


def test_gsm8ks_examples_are_no_rows_of_the_test_split():
    asked = turns("gsm8k")
    shown = shared("gsm8k", variant="cot8", limit=1).prompts[0].turns[0].split("\n\n")
    assert not asked & {block.removeprefix("Q: ").partition("\n")[0] for block in shown[:-1]}


def test_every_spider_prompt_shows_the_schema_that_its_gold_query_needs():
    """In a database made of the prompt's own statements, every gold query compiles: all names are there, quoted rightly."""
    prompts = shared("spider").prompts
    by_schema: dict[str, list[str]] = {}
    for prompt in prompts:
        head = prompt.turns[0].split("/* Answer the following: ")[0]
        by_schema.setdefault(head, []).append(prompt.reference["query"])
    assert len(by_schema) == 20
    for head, queries in by_schema.items():
        with sqlite3.connect(":memory:") as database:
            # world_1 lists a table that SQLite keeps for itself and lets nobody create.
            database.executescript(re.sub(r"CREATE TABLE sqlite_sequence \([^;]*;", "", head))
            for query in queries:
                database.execute(query)


PLAIN = {"mbpp": "bare", "mbpp_sanitized": "bare"}
"""Forms without a wording that samples and originals would share."""


@pytest.mark.parametrize("name", dataset_names())
def test_samples_share_no_eight_words_with_the_published_set(name):
    def runs(prompts):
        said = [turn.removeprefix(INSTRUCTION) for prompt in prompts for turn in prompt.turns]
        said = [turn.rpartition("/* Answer the following:")[2] for turn in said]
        words = [re.findall(r"\w+", turn.lower()) for turn in said]
        return {tuple(each[k : k + 8]) for each in words for k in range(len(each) - 7)}

    overrides = {"variant": PLAIN[name]} if name in PLAIN else {}
    samples = load_prompts(config(name, **overrides), DataConfig(source="samples"))
    assert not runs(samples.prompts) & runs(shared(name, **overrides).prompts)
