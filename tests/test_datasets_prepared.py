"""`python -m data_prep fetch` and what reads its files back."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.__main__ import main
from data_prep.sets import dataset_config, dataset_names
from dataset_rows import EXPECTED, HUB_ROWS, ROWS, FakeBuilder, config, jsonl, write_tables
from talon_bench.errors import UsageError
from talon_bench.prompts import prepared
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.prompt import Prompt, PromptSet
from talon_bench.prompts.source import load_prompts

COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def originals(tmp_path) -> Path:
    """A folder with the first candidate file of every data set."""
    root = tmp_path / "originals"
    for name in dataset_names():
        place = root / dataset_config(name).files[0]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(jsonl(ROWS[name]) if "jsonl" in place.name else json.dumps(ROWS[name]).encode())
    (root / "humaneval" / "HumanEval.jsonl.gz").rename(root / "humaneval" / "HumanEval.jsonl")
    write_tables(root)
    return root


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def fetch(originals: Path, out: Path, *names: str) -> int:
    return main(["fetch", *names, "--root", str(originals), "--out", str(out)])


@pytest.mark.parametrize("name", dataset_names())
def test_prepared_prompts_equal_those_of_the_original(originals, tmp_path, name):
    out = tmp_path / "out"
    fetch(originals, out, name)
    data = DataConfig(root=str(out), source="prepared")
    found = load_prompts(config(name), data)
    assert found.prompts == EXPECTED[name]
    own = load_prompts(config(name), DataConfig(root=str(originals)))
    assert (found.source, found.available, found.left_out) == ("prepared", own.available, own.left_out)
    assert found.sha256 == hashlib.sha256((out / found.origin).read_bytes()).hexdigest()
    (first,) = load_prompts(config(name, offset=len(EXPECTED[name]) - 1), data).prompts
    assert first == EXPECTED[name][-1]


def test_a_line_has_one_schema_and_the_manifest_vouches_for_the_file(originals, tmp_path, capsys):
    out = tmp_path / "out"
    assert fetch(originals, out, "mbpp") == 0
    lines = [json.loads(line) for line in (out / "mbpp.test.zero_shot.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [["id", "category", "turns", "reference", "variant"]] * 2
    assert lines[0]["variant"] == "zero_shot"
    files = manifest(out)["files"]
    assert sorted(files) == [
        *("mbpp.all.bare.jsonl", "mbpp.all.paper3.jsonl", "mbpp.all.zero_shot.jsonl"),
        *("mbpp.test.bare.jsonl", "mbpp.test.paper3.jsonl", "mbpp.test.zero_shot.jsonl"),
    ]
    assert files["mbpp.all.paper3.jsonl"] == {
        "dataset": "mbpp",
        "variant": "paper3",
        "split": "all",
        "rows": 3,
        "turns": 3,
        "left_out": 3,
        "sha256": hashlib.sha256((out / "mbpp.all.paper3.jsonl").read_bytes()).hexdigest(),
        "source": "local",
        "origin": "mbpp/mbpp.jsonl",
        "source_sha256": hashlib.sha256((originals / "mbpp" / "mbpp.jsonl").read_bytes()).hexdigest(),
        "companion_sha256": None,
        "published": False,
        "commit": None,
        "licence": "CC BY 4.0",
    }
    assert {file.name for file in out.iterdir()} == {*files, "manifest.json"}, "no drafts stay behind"
    printed = capsys.readouterr().out
    assert "mbpp.all.paper3.jsonl: 3 prompts from mbpp/mbpp.jsonl, 3 rows left out; not the published file" in printed


def test_the_manifest_says_where_no_sum_is_known(originals, tmp_path, capsys):
    out = tmp_path / "out"
    fetch(originals, out, "qa", "gsm8k")
    files = manifest(out)["files"]
    assert (files["qa.eagle.jsonl"]["published"], files["gsm8k.bare.jsonl"]["published"]) == (None, False)
    lines = capsys.readouterr().out.splitlines()
    assert "qa.eagle.jsonl: 2 prompts from qa/NQ-open.dev.jsonl; no sum of the published file is known" in lines


@pytest.mark.parametrize("place", ["taken", "taken/below"])
def test_a_place_that_cannot_be_written_is_one_line(originals, tmp_path, capsys, place):
    (tmp_path / "taken").write_text("a file")
    assert fetch(originals, tmp_path / place, "mbpp") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {Path(place).name}: could not be read or written (")
    assert (error.count("\n"), str(tmp_path) in error) == (1, False)
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_full_disk_is_one_line(originals, tmp_path, capsys, monkeypatch):
    def full(place: Path, write: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prepared.atomic, "replace", full)
    assert fetch(originals, tmp_path / "out", "mbpp") == 2
    assert capsys.readouterr().err.startswith("error: a file: could not be read or written (No space left on device)")


TEXT = st.text(min_size=1).filter(str.strip)
PROMPTS = st.builds(
    Prompt,
    id=TEXT,
    category=TEXT,
    turns=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
    reference=st.dictionaries(TEXT, st.text(), max_size=2),
)


@settings(max_examples=60)
@given(
    prompts=st.lists(PROMPTS, min_size=1, max_size=4, unique_by=lambda prompt: prompt.id), left_out=st.integers(0, 9)
)
def test_any_prompts_come_back_as_they_were_written(tmp_path_factory, prompts, left_out):
    out = tmp_path_factory.mktemp("prepared")
    facts = {"source": "local", "origin": "x.jsonl", "sha256": "0", "companion_sha256": None, "available": len(prompts)}
    prepared.write(out, None, PromptSet("gsm8k", tuple(prompts), "bare", left_out=left_out, **facts), {})
    found = load_prompts(config("gsm8k"), DataConfig(root=str(out), source="prepared"))
    assert (found.prompts, found.left_out) == (tuple(prompts), left_out)


def test_a_later_fetch_keeps_the_other_sets(originals, tmp_path):
    out = tmp_path / "out"
    fetch(originals, out, "mbpp", "spider")
    before = manifest(out)["files"]
    fetch(originals, out, "spec_bench")
    after = manifest(out)["files"]
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == ["spec_bench.plain.jsonl"]
    assert (
        after["spider.code.jsonl"]["companion_sha256"]
        == hashlib.sha256((originals / "tables.json").read_bytes()).hexdigest()
    )


def test_what_is_missing_is_named_and_the_rest_is_written(originals, tmp_path, capsys):
    out = tmp_path / "out"
    (originals / "mbpp" / "mbpp.jsonl").unlink()
    assert fetch(originals, out, "mbpp", "gsm8k") == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in errors] == ["mbpp", "gsm8k", "gsm8k"]
    assert errors[0].endswith("sanitized-mbpp.json from the project google-research/google-research")
    assert sorted(manifest(out)["files"]) == ["gsm8k.bare.jsonl", "gsm8k.cot8.jsonl"]
    assert str(tmp_path) not in "".join(errors)


def test_from_the_hub_the_commit_is_written_down(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("talon_bench.prompts.hub.resolve", lambda hub: COMMIT)
    builder = FakeBuilder(HUB_ROWS["mt_bench"], "train")
    monkeypatch.setattr("datasets.load_dataset_builder", lambda path, **rest: builder)
    assert main(["fetch", "mt_bench", "--source", "hub", "--out", str(tmp_path)]) == 0
    files = manifest(tmp_path)["files"]
    assert list(files) == ["mt_bench.plain.jsonl"], "EAGLE's own file is not on the hub"
    entry = files["mt_bench.plain.jsonl"]
    assert (entry["commit"], entry["published"], entry["source"]) == (COMMIT, None, "hub")
    assert entry["origin"] == f"HuggingFaceH4/mt_bench_prompts@{COMMIT}"
    assert "published" not in capsys.readouterr().out


def test_an_unreachable_hub_is_asked_once_a_set(tmp_path, monkeypatch, capsys):
    asked = []

    def refuse(hub):
        asked.append(hub.path)
        raise ConnectionError("no route")

    monkeypatch.setattr("talon_bench.prompts.hub.resolve", refuse)
    assert main(["fetch", "mbpp", "gsm8k", "spec_bench", "--source", "hub", "--out", str(tmp_path / "out")]) == 2
    assert asked == ["google-research-datasets/mbpp", "openai/gsm8k"]
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1].split()[0] for line in errors] == ["mbpp", "gsm8k", "spec_bench"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["fetch", "gsm9k", "--root", ".", "--out", "x"],
            "error: gsm9k: no such data set; expected one of alpaca, cnn_dm",
        ),
        (["fetch", "--out", "x"], "error: --source local needs --root"),
        (["fetch", "--root", "x", "--out", "./x"], "error: --out is the folder of the original files"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


@pytest.fixture
def out(originals, tmp_path) -> Path:
    folder = tmp_path / "out"
    fetch(originals, folder, "spider")
    return folder


def refused(folder: Path, message: str, **overrides) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_prompts(config("spider", **overrides), DataConfig(root=str(folder), source="prepared"))
    assert "\n" not in str(caught.value)
    assert str(folder) not in str(caught.value)


def test_a_file_that_the_manifest_does_not_vouch_for_is_refused(out):
    with (out / "spider.code.jsonl").open("a") as file:
        file.write("\n")
    refused(out, r"spider\.code\.jsonl: sha256 .* expected by manifest\.json; .*data_prep fetch spider --root .* --out")
    load_prompts(config("spider", variant="openai"), DataConfig(root=str(out), source="prepared"))


def test_what_was_never_prepared_is_named(out):
    with pytest.raises(UsageError, match=r"gsm8k: found no gsm8k\.cot8\.jsonl .* fetch gsm8k --root .* --out"):
        load_prompts(config("gsm8k", variant="cot8"), DataConfig(root=str(out), source="prepared"))
    (out / "spider.code.jsonl").unlink()
    refused(out, r"spider: found no spider\.code\.jsonl")
    (out / "manifest.json").unlink()
    refused(out, r"found no manifest\.json; make one with `.* fetch --root ORIGINALS --out FOLDER`")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 9, "files": {}}',
        '{"schema": 1, "files": {"spider.code.jsonl": {"sha256": 1, "left_out": 0}}}',
        '{"schema": 1, "files": {"spider.code.jsonl": []}}',
    ],
)
def test_another_manifest_is_refused(out, content):
    (out / "manifest.json").write_text(content)
    refused(out, r"^manifest\.json: expected")


def test_a_killed_write_leaves_the_old_file(out, monkeypatch):
    before = (out / "spider.code.jsonl").read_bytes()

    def killed(draft, final):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    found = load_prompts(config("spider"), DataConfig(root=str(out), source="prepared"))
    with pytest.raises(KeyboardInterrupt):
        prepared.write(out, None, replace(found, prompts=()), {})
    assert (out / "spider.code.jsonl").read_bytes() == before
    assert load_prompts(config("spider"), DataConfig(root=str(out), source="prepared")).prompts == found.prompts
