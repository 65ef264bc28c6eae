"""Prompts of a plan: published counts against the original files, what is approximate, and what the hub lacks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from data_prep.sets import Form, dataset_config, dataset_names, forms
from talon_bench.compose import compose_config
from talon_bench.errors import UsageError
from talon_bench.plan.prompts import MEGABYTES, PUBLISHED, Prompts, prompts_of
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.source import load_prompts

HUB = DataConfig(source="hub")


def found(*overrides: str) -> Prompts:
    """Prompts of a job with rows of the hub and answers of up to 100 tokens."""
    return prompts_of(compose_config(overrides).dataset, HUB, 100)


def test_published_counts_follow_the_selection() -> None:
    assert (found("dataset=mt_bench").count, found("dataset=mt_bench").answers) == (80, 160)
    assert found("dataset=mt_bench", "dataset.turns=1").answers == 80
    assert found("dataset=gsm8k", "dataset.variant=eagle80").count == 80
    assert found("dataset=gsm8k", "dataset.offset=1300", "dataset.limit=50").count == 19
    assert found("dataset=gsm8k", "dataset.ids=[gsm8k-0001]").count == 1
    assert found("dataset=gsm8k", "dataset.variant=sglang5").count == 1314, "five rows are its examples"
    assert found("dataset=mbpp", "dataset.split=all", "dataset.variant=paper3").count == 971
    assert (found("dataset=spec_bench").count, found("dataset=spec_bench").answers) == (480, 560)
    assert found("dataset=mt_bench").longest == 548 + 64 + 100 + 373 + 64, "1642 and 1117 characters, an answer between"


def test_what_is_no_count_is_called_about() -> None:
    exact, card, guess = found("dataset=gsm8k"), found("dataset=alpaca"), found("dataset=sharegpt_multi")
    assert (exact.source, exact.note) == ("counted in the published file", None)
    assert (card.source, card.count) == ("published count", 52_002)
    assert card.note == "alpaca: turns of up to about 2,500 characters, about 24 MB to fetch"
    assert guess.source == "about the published count"
    assert guess.note == (
        "sharegpt_multi: turns of up to about 40,000 characters, about 8 a prompt, about 94,145 prompts, about 673 MB to fetch"
    )
    limited = found("dataset=sharegpt", "dataset.limit=80")
    assert (limited.count, limited.note) == (
        80,
        "sharegpt: turns of up to about 40,000 characters, about 673 MB to fetch",
    )
    assert "about" not in found("dataset=alpaca", "dataset.variant=eagle80").source
    own = found("dataset=gsm8k", "dataset.name=mine")
    assert (own.source, own.count) == ("a guess: this data set is not known", 1000)
    assert own.note == "mine: turns of up to about 12,000 characters, about 1,000 prompts"


def test_every_form_of_every_data_set_has_a_published_count() -> None:
    expected = {(form.dataset.name, form_key(form)) for form in forms(dataset_names())}
    assert {(name, key) for name, known in PUBLISHED.items() for key in known} == expected
    assert set(MEGABYTES) == {name for name in PUBLISHED if dataset_config(name).hub is not None}


def form_key(form: Form) -> str:
    first = next(iter(form.loader.splits), None)
    return form.dataset.variant + ("" if form.dataset.split in (None, first) else f" {form.dataset.split}")


def test_published_counts_are_those_of_the_published_files() -> None:
    shared = Path(os.environ.get("TALON_BENCH_SHARED") or Path(__file__).resolve().parents[2] / "shared") / "data"
    if not shared.is_dir():
        pytest.skip("no original data files in TALON_BENCH_SHARED")
    counted = 0
    for form in forms(dataset_names()):
        known = PUBLISHED[form.dataset.name][form_key(form)]
        if known.about:
            continue
        found = load_prompts(form.dataset, DataConfig(root=str(shared)))
        assert form.published(found), form.title
        turns = [prompt.turns for prompt in found.prompts]
        depth = range(max(map(len, turns)))
        asked = tuple(sum(len(own) > place for own in turns) for place in depth)
        longest = tuple(max(len(own[place]) for own in turns if len(own) > place) for place in depth)
        assert (asked, longest) == (known.asked, known.longest), form.title
        counted += 1
    assert counted == sum(not known.about for own in PUBLISHED.values() for known in own.values())


TABLES = "take evaluation_examples/examples/tables.json from the project taoyds/spider"


def test_a_plan_and_a_run_say_what_the_hub_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spider's rows are on the hub, the schemas that its prompts show are not."""
    dataset = compose_config(["dataset=spider"]).dataset
    needs = "spider needs spider/tables.json, which the hub lacks: "
    assert prompts_of(dataset, HUB, 100).note == f"{needs}set data.root to the folder that holds it"
    rooted = DataConfig(root=str(tmp_path), source="hub")
    assert prompts_of(dataset, rooted, 100).note == f"{needs}put it into data.root"
    asked = []
    monkeypatch.setattr("talon_bench.prompts.hub.read", lambda name, hub: asked.append(name))
    for data in (HUB, rooted):
        with pytest.raises(UsageError, match=re.escape(TABLES)):
            load_prompts(dataset, data)
    assert asked == [], "a run that cannot be does not ask the hub first"
    (tmp_path / "tables.json").write_text("[]")
    assert prompts_of(dataset, rooted, 100).note is None


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        (["dataset=spec_bench"], "spec_bench has files of its own, which the hub lacks"),
        (
            ["dataset=gsm8k", "dataset.variant=eagle80"],
            "gsm8k reads eagle/gsm8k/question.jsonl, which the hub lacks",
        ),
    ],
)
def test_forms_that_are_not_on_the_hub_are_named_by_plan_and_run(overrides: list[str], start: str) -> None:
    dataset = compose_config(overrides).dataset
    note = prompts_of(dataset, HUB, 100).note
    assert note.startswith(start)
    assert re.search(r": set data\.root to the folder that holds (it|them), without data\.source=hub$", note)
    with pytest.raises(UsageError, match=r"set data\.root"):
        load_prompts(dataset, HUB)


def test_samples_are_read_and_a_second_turn_follows_an_answer() -> None:
    short = prompts_of(compose_config(["dataset=mt_bench"]).dataset, DataConfig(), 100)
    assert (short.count, short.answers, short.source) == (12, 24, "samples")
    longer = prompts_of(compose_config(["dataset=mt_bench"]).dataset, DataConfig(), 300)
    assert longer.longest == short.longest + 200
