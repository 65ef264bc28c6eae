"""Files of a checkpoint's repository: what is fetched, counted, hashed and looked for in the cache, by one rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from talon_bench import loading
from talon_bench.doctor import files as doctor_files
from talon_bench.drafters.weights import ENTRIES as HEAD_ENTRIES
from talon_bench.plan import checkpoints
from talon_bench.repository import ENTRIES, form_of, is_complete, needed, snapshot, weight_files
from talon_bench.schema import HeadConfig, TargetConfig

COMMIT = "c0ffee" + "0" * 34
BESIDE = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "chat_template.jinja",
    "vocab.txt",
]
SAFETENSORS = [
    *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"),
]
PICKLED = [
    *("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"),
]
NEVER = [
    *("original/consolidated.00.pth", "original/params.json", "original/tokenizer.model", "original/model.safetensors"),
    *(
        "consolidated.safetensors",
        "consolidated.00.pth",
        "model.gguf",
        "tf_model.h5",
        "flax_model.msgpack",
        "model.onnx",
    ),
    *(
        "onnx/model.onnx",
        "onnx/config.json",
        "training_args.bin",
        "optimizer.bin",
        "README.md",
        ".gitattributes",
        "a.py",
    ),
]


@pytest.mark.parametrize(
    ("listed", "weights"),
    [
        (SAFETENSORS + PICKLED, SAFETENSORS + PICKLED[2:]),
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (PICKLED, PICKLED),
        (["pytorch_model.bin"], ["pytorch_model.bin"]),
    ],
    ids=["both in shards", "both whole", "pickled in shards", "pickled whole"],
)
def test_one_form_of_the_weights_is_needed(listed: list[str], weights: list[str]) -> None:
    """An index is a few kB of JSON; the second one is harmless, and leaving it out would need the list of files first."""
    assert needed([*NEVER, *BESIDE, *listed]) == [*BESIDE, *weights]


@given(st.lists(st.sampled_from([*BESIDE, *SAFETENSORS, *PICKLED, *NEVER, "model.safetensors"]), unique=True))
def test_no_two_forms_and_nothing_unwanted_whatever_is_listed(listed: list[str]) -> None:
    found = needed(listed)
    assert not set(found) & set(NEVER)
    assert set(BESIDE) & set(listed) <= set(found)
    assert len({Path(name).suffix for name in found} & {".safetensors", ".bin"}) <= 1
    assert needed(found) == found, "the needed files are enough to know what is needed"


def test_the_entries_are_those_that_heads_are_read_from() -> None:
    assert tuple(name for entry in ENTRIES.values() for name in (entry, f"{entry}.index.json")) == HEAD_ENTRIES


class Hub:
    """The hub's client on a listing of (name, content): what it is asked for lands in the snapshot's folder."""

    def __init__(self, folder: Path, listing: dict[str, bytes]) -> None:
        self.folder, self.listing = folder / COMMIT, listing
        self.asked: list[str | None] = []
        self.fetched: list[str] = []

    def snapshot_download(
        self, hub: str, *, revision: str | None, local_files_only: bool, **patterns: Sequence[str]
    ) -> str:
        from huggingface_hub.utils import filter_repo_objects

        assert not local_files_only
        self.asked.append(revision)
        for name in filter_repo_objects(self.listing, **patterns):
            place = self.folder / name
            if not place.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(self.listing[name])
                self.fetched.append(name)
        return str(self.folder)


def listing(*weights: str) -> dict[str, bytes]:
    return {name: name.encode() for name in [*BESIDE, *NEVER, *weights]}


def test_safetensors_are_fetched_and_nothing_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path, listing(*SAFETENSORS, *PICKLED))
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    folder, revision = loading._folder(TargetConfig(name="x", hub="a/b", revision="main"))
    assert (folder, revision) == (tmp_path / COMMIT, COMMIT)
    assert sorted(hub.fetched) == sorted(needed(hub.listing))
    assert not [name for name in hub.fetched if name.endswith((".bin", ".pth")) or "/" in name]
    assert hub.asked == ["main"], "one question where there are safetensors"


def test_pickled_weights_are_fetched_of_the_same_commit_where_there_is_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, listing(*PICKLED))
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    folder, _ = loading._folder(HeadConfig(name="x", target="y", hub="a/b"))
    assert sorted(hub.fetched) == sorted(needed(hub.listing))
    assert [file.name for file in weight_files(folder)] == PICKLED[:2]
    assert hub.asked == [None, COMMIT], "main may have moved between the two questions"


def test_a_plan_counts_what_would_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*BESIDE, *NEVER, *SAFETENSORS, *PICKLED]
    siblings = [SimpleNamespace(rfilename=name, size=10**place) for place, name in enumerate(names)]
    info = SimpleNamespace(siblings=siblings, gated="manual", card_data=SimpleNamespace(license="llama2"), sha=COMMIT)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    found = checkpoints.ask_hub("x", "a/b", None)
    assert found.bytes == sum(10 ** names.index(name) for name in needed(names))
    assert (found.gated, found.licence, found.revision) == (True, "llama2", COMMIT)


def cached(root: Path, *names: str, listed: Sequence[str] | None = None) -> Path:
    """A repository in the hub's cache; `listed`: what the client remembers that the repository holds."""
    storage = root / "models--a--b"
    folder = storage / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (storage / "refs").mkdir()
    (storage / "refs" / "main").write_text(COMMIT)
    for name in names:
        (folder / name).write_text("{}")
    if listed is not None:
        tree = pytest.importorskip("huggingface_hub._snapshot_download")
        entry = {"size": 2, "blob_id": "0", "lfs_sha256": None, "lfs_size": None, "xet_hash": None}
        tree.write_tree_cache(str(storage), COMMIT, {name: tree.TreeCacheEntry(**entry) for name in listed})
    return folder


def test_a_snapshot_without_what_is_never_fetched_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client remembers every file of the repository; asked for all of them, it would call the snapshot incomplete."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    names = [*BESIDE, "model.safetensors"]
    folder = cached(tmp_path, *names, listed=[*names, "pytorch_model.bin", *NEVER])
    assert snapshot("a/b", None, local_files_only=True) == folder
    assert checkpoints.local_folder(TargetConfig(name="x", hub="a/b")) == folder
    (folder / "model.safetensors").unlink()
    assert checkpoints.local_folder(TargetConfig(name="x", hub="a/b")) is None


@pytest.mark.parametrize(
    ("names", "index", "whole"),
    [
        (["config.json", "model.safetensors"], None, True),
        (["model.safetensors"], None, False),
        (["config.json"], None, False),
        (["config.json", "pytorch_model.bin"], None, True),
        (["config.json", "a.safetensors", "b.safetensors"], "model.safetensors", True),
        (["config.json", "a.safetensors"], "model.safetensors", False),
        (["config.json", "a.safetensors", "pytorch_model.bin"], "model.safetensors", False),
        (["config.json", "consolidated.safetensors"], None, False),
    ],
)
def test_a_whole_snapshot_has_every_file_that_its_index_names(
    tmp_path: Path, names: list[str], index: str | None, whole: bool
) -> None:
    folder = cached(tmp_path, *names)
    if index:
        weights = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
        (folder / f"{index}.index.json").write_text(json.dumps(weights))
    assert is_complete(folder) is whole


def test_sizes_and_checksums_are_of_the_weights_that_are_read(tmp_path: Path) -> None:
    for name in ("model.safetensors", "consolidated.safetensors"):
        save_file({"a": torch.zeros(100)}, tmp_path / name)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 1000)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert form_of(file.name for file in tmp_path.iterdir()) == "*.safetensors"
    assert checkpoints.stored(tmp_path) == checkpoints.Stored(size, 100)
    facts = loading._checkpoint_facts(tmp_path)
    assert (facts["weight_bytes"], facts["sha256"]) == (size, loading.sha256_of(tmp_path / "model.safetensors"))
    (tmp_path / "model.safetensors").unlink()
    assert checkpoints.stored(tmp_path) == checkpoints.Stored(1000, None)
    assert loading._checkpoint_facts(tmp_path)["weight_bytes"] == 1000


def test_the_doctor_says_which_files_are_read(tmp_path: Path) -> None:
    for name in (*SAFETENSORS, *PICKLED, "consolidated.safetensors"):
        (tmp_path / name).write_bytes(b"x" * 10**7)
    here = TargetConfig(name="x", path=str(tmp_path))
    assert doctor_files._checkpoint("target", here).found == "x from local folder, 2 .safetensors files of 0.02 GB"
    for file in tmp_path.iterdir():
        file.unlink()
    assert doctor_files._checkpoint("target", here).found == "x from local folder, no weights"
