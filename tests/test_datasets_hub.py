"""The hub: what is asked of it, what is recorded, and how its absence reads."""

from __future__ import annotations

import hashlib
import json
import time

import pytest

from dataset_rows import EXPECTED, HUB_ROWS, ROWS, FakeBuilder, config
from talon_bench.errors import UsageError
from talon_bench.prompts import hub
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.source import load_prompts

COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


def test_the_hub_is_asked_for_the_pinned_revision_and_the_commit_is_recorded(monkeypatch):
    asked = []
    monkeypatch.setattr("talon_bench.prompts.hub.resolve", lambda hub: asked.append(hub.revision) or COMMIT)
    builder = FakeBuilder(HUB_ROWS["mt_bench"], "train")
    monkeypatch.setattr("datasets.load_dataset_builder", lambda path, **rest: asked.append((path, rest)) or builder)
    found = load_prompts(config("mt_bench", hub={"revision": "v1"}), DataConfig(source="hub"))
    rest = {"name": None, "data_files": None, "revision": COMMIT}
    assert asked == ["v1", ("HuggingFaceH4/mt_bench_prompts", rest)]
    assert found.prompts == EXPECTED["mt_bench"]
    assert (found.source, found.origin) == ("hub", f"HuggingFaceH4/mt_bench_prompts@{COMMIT}")
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in HUB_ROWS["mt_bench"])
    assert found.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_the_commit_is_resolved_by_one_short_question(monkeypatch):
    asked = []

    class Api:
        def dataset_info(self, path, **rest):
            asked.append((path, rest))
            return type("Info", (), {"sha": COMMIT})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert hub.resolve(config("gsm8k", hub={"revision": "v2"}).hub) == COMMIT
    assert asked == [("openai/gsm8k", {"revision": "v2", "timeout": hub.PATIENCE_S})]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub.resolve(config("gsm8k").hub) is None
    assert len(asked) == 1, "offline, nothing is asked"


@pytest.mark.parametrize("name", ["gsm8k", "humaneval", "mbpp", "mbpp_sanitized", "sharegpt", "alpaca", "qa", "cnn_dm"])
def test_known_commits_are_pinned(name):
    assert len(config(name).hub.revision) == 40


def publish(tmp_path, monkeypatch, path: str, splits: dict[str, list[dict]], name: str) -> None:
    """A hub repository as a folder, which the library reads like the real one; the hub itself is not asked."""
    import datasets

    types = {int: datasets.Value("int64"), str: datasets.Value("string"), list: [datasets.Value("string")]}
    columns = datasets.Features({key: types[type(value)] for key, value in next(iter(splits.values()))[0].items()})

    folder = tmp_path.joinpath(*path.split("/"), name)
    folder.mkdir(parents=True)
    lines = [f"configs:\n- config_name: {name}\n  data_files:\n"]
    for split, rows in splits.items():
        datasets.Dataset.from_list(rows, features=columns).to_parquet(str(folder / f"{split}-0.parquet"))
        lines.append(f"  - split: {split}\n    path: {name}/{split}-*\n")
    (folder.parent / "README.md").write_text(f"---\n{''.join(lines)}---\n")
    offline(tmp_path, monkeypatch)


def offline(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("talon_bench.prompts.hub.resolve", lambda hub: None)


def test_hub_rows_through_the_real_datasets_library(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    publish(tmp_path, monkeypatch, "openai/gsm8k", {"test": ROWS["gsm8k"]}, "main")
    found = load_prompts(config("gsm8k", hub={"revision": None}), DataConfig(source="hub"))
    assert found.prompts == EXPECTED["gsm8k"]
    assert found.origin == "openai/gsm8k"


def test_the_splits_of_mbpp_come_in_the_order_of_its_file(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    rows = ROWS["mbpp"]
    splits = {"train": [{**rows[5], "task_id": 700}], "test": rows[3:5], "validation": rows[5:], "prompt": rows[:3]}
    publish(tmp_path, monkeypatch, "google-research-datasets/mbpp", splits, "full")
    dataset = config("mbpp", split="all", hub={"revision": None})
    found = load_prompts(dataset, DataConfig(source="hub"))
    assert [prompt.id for prompt in found.prompts] == ["2", "3", "4", "11", "510", "511", "700"]
    assert load_prompts(config("mbpp", hub={"revision": None}), DataConfig(source="hub")).prompts == EXPECTED["mbpp"]


def test_sharegpt_is_one_named_file_of_its_repository(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    folder = tmp_path / "anon8231489123" / "ShareGPT_Vicuna_unfiltered"
    folder.mkdir(parents=True)
    (folder / "ShareGPT_V3_unfiltered_cleaned_split.json").write_text(json.dumps(ROWS["sharegpt"], indent=2))
    (folder / "another.json").write_text("[]")
    offline(tmp_path, monkeypatch)
    found = load_prompts(config("sharegpt_multi", hub={"revision": None}), DataConfig(source="hub"))
    assert found.prompts == EXPECTED["sharegpt_multi"]


def test_an_unreachable_hub_is_one_line_with_the_way_out(monkeypatch):
    def refuse(hub):
        raise ConnectionError(f"Couldn't reach '{hub.path}'\nsecond line")

    monkeypatch.setattr("talon_bench.prompts.hub.resolve", refuse)
    message = r"openai/gsm8k .*ConnectionError.* data.root .* data.source=samples"
    with pytest.raises(UsageError, match=message) as caught:
        load_prompts(config("gsm8k"), DataConfig(source="hub"))
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_does_not_make_anyone_wait(monkeypatch):
    """Nothing listens on this port: the real client gives up at once instead of retrying."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(UsageError, match="could not load openai/gsm8k from the hub"):
        load_prompts(config("gsm8k"), DataConfig(source="hub"))
    assert time.monotonic() - started < 10
