"""The samples that ship here, and the published files where they are at hand."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from talon_bench.paths import shipped
from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.prompts.humaneval import INSTRUCTION
from talon_bench.prompts.source import load_prompts

SHARED = Path(os.environ.get("TALON_BENCH_SHARED", Path(__file__).resolve().parents[1].parent / "shared")) / "data"


def config(name: str) -> DatasetConfig:
    yaml = OmegaConf.load(shipped("conf") / "dataset" / f"{name}.yaml")
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DatasetConfig), yaml))


@pytest.mark.parametrize("name", sorted(LOADERS))
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


# The published files


def shared(name: str):
    if not SHARED.is_dir():
        pytest.skip("the published data files are not on this machine (TALON_BENCH_SHARED)")
    return load_prompts(config(name), DataConfig(root=str(SHARED)))


@pytest.mark.parametrize(
    ("name", "rows", "turns"), [("mt_bench", 80, 160), ("gsm8k", 1319, 1319), ("humaneval", 164, 164)]
)
def test_every_published_row_goes_through_its_loader(name, rows, turns):
    found = shared(name)
    assert (found.available, len(found.prompts)) == (rows, rows)
    assert sum(len(prompt.turns) for prompt in found.prompts) == turns
    assert found.sha256 in LOADERS[name].published_sha256


def test_published_mt_bench_has_ten_conversations_a_category():
    assert set(Counter(prompt.category for prompt in shared("mt_bench").prompts).values()) == {10}


def test_humaneval_of_the_package_is_the_published_file():
    assert load_prompts(config("humaneval"), DataConfig(source="package")).prompts == shared("humaneval").prompts


def eagle_turns(name: str) -> list[str]:
    file = SHARED / "eagle" / name / "question.jsonl"
    return [json.loads(line)["turns"][0] for line in file.read_text(encoding="utf-8").split("\n") if line]


def test_eagle_asks_80_of_the_gsm8k_turns():
    ours = {prompt.turns[0] for prompt in shared("gsm8k").prompts}
    assert sum(turn in ours for turn in eagle_turns("gsm8k")) == 80


def test_eagle_asks_80_of_the_humaneval_turns_without_the_line_break():
    bare = INSTRUCTION.removesuffix("\n")
    ours = {bare + prompt.turns[0].removeprefix(INSTRUCTION) for prompt in shared("humaneval").prompts}
    assert sum(turn in ours for turn in eagle_turns("humaneval")) == 80


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_samples_share_no_eight_words_with_the_published_set(name):
    def runs(prompts):
        turns = [turn.removeprefix(INSTRUCTION) for prompt in prompts for turn in prompt.turns]
        words = [re.findall(r"\w+", turn.lower()) for turn in turns]
        return {tuple(each[k : k + 8]) for each in words for k in range(len(each) - 7)}

    samples = load_prompts(config(name), DataConfig(source="samples"))
    assert not runs(samples.prompts) & runs(shared(name).prompts)
