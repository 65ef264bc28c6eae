"""Training texts that repeat test prompts: equal once case and punctuation are gone, or a run of 10 words in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from omegaconf import OmegaConf

from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.prompts.source import load_prompts

RUN = 10
"""Words in a row that a training text and a test prompt must not share."""

RULE = f"equal without case and punctuation, or {RUN} words in a row in common"

_WORD = re.compile(r"[^\W_]+")
_BARE = {"humaneval": "completion", "mbpp": "bare", "alpaca": "with_input"}
"""Forms without wording of their own, which training prompts share by intention."""


@dataclass
class TestPrompts:
    """Texts of test prompts, by test set, in a form that is quick to compare with."""

    __test__ = False  # no test class, whatever pytest makes of its name

    sets: dict[str, int] = field(default_factory=dict)
    """Prompts compared with, by test set."""
    files: list[str] = field(default_factory=list)
    """Files that they were read from: names relative to data.root, packages, samples."""
    _exact: dict[str, str] = field(default_factory=dict)
    _runs: dict[int, str] = field(default_factory=dict)

    def add(self, name: str, text: str) -> None:
        """Take one turn of a prompt of test set `name`."""
        found = words(text)
        self.sets[name] = self.sets.get(name, 0) + 1
        self._exact.setdefault(" ".join(found), name)
        for run in runs(found):
            self._runs.setdefault(run, name)

    def find(self, texts: Iterable[str]) -> tuple[str, str] | None:
        """("exact" or "run", test set) of the first overlap of a row's own texts, None where there is none."""
        for text in texts:
            found = words(text)
            if name := self._exact.get(" ".join(found)):
                return "exact", name
            for run in runs(found):
                if name := self._runs.get(run):
                    return "run", name
        return None


def words(text: str) -> list[str]:
    """Words in lower case: letters and digits, whatever stands between them."""
    return _WORD.findall(text.casefold())


def runs(found: list[str]) -> Iterator[int]:
    """A number per run of `RUN` words: 64-bit hashes, of which two of a hundred million meet by chance once in 3,000 times."""
    for start in range(len(found) - RUN + 1):
        yield hash(tuple(found[start : start + RUN]))


def prompts_at_hand(root: str | None) -> TestPrompts:
    """All test prompts at hand: every file of every data set that is under `root`, installed packages, shipped samples.

    UsageError where `root` holds no test set: the samples alone vouch for nothing.
    """
    found = TestPrompts()
    for dataset in _datasets():
        for data, part in _sources(dataset, root):
            loaded = load_prompts(part, data)
            found.files.append(loaded.origin)
            for prompt in loaded.prompts:
                for turn in prompt.turns:
                    found.add(dataset.name, _own(dataset, turn))
    local = {file for dataset in _datasets() for file in _files(dataset)} & set(found.files)
    if not local:
        raise UsageError(
            "training.overlap=on found no test set in data.root to compare training prompts with; set data.root to the"
            " folder that holds them (docs/datasets.md lists the files), or say training.overlap=off"
        )
    return found


def _datasets() -> list[DatasetConfig]:
    files = sorted((shipped("conf") / "dataset").glob("*.yaml"))
    return [OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DatasetConfig), OmegaConf.load(f))) for f in files]


def _sources(dataset: DatasetConfig, root: str | None) -> Iterator[tuple[DataConfig, DatasetConfig]]:
    """Every source of a data set that is at hand."""
    bare = replace(
        dataset, variant=_BARE.get(dataset.loader), split="all" if dataset.name == "mbpp_sanitized" else None
    )
    yield DataConfig(None, "samples"), bare
    if dataset.package is not None:
        yield DataConfig(None, "package"), bare
    if root is None:
        return
    folder = Path(root).expanduser()
    for file in dataset.files:
        if (folder / file).is_file():
            yield DataConfig(root, "local"), replace(bare, files=[file])
    whole = {file for other in _datasets() for file in other.files}
    for name, variant in LOADERS[dataset.loader].variants.items():
        # A form may read another set's file, which is compared with as that set.
        if any((folder / file).is_file() for file in variant.files if file not in whole):
            yield DataConfig(root, "local"), replace(dataset, variant=name)


def _files(dataset: DatasetConfig) -> set[str]:
    """Every file under data.root that a form of the data set reads."""
    variants = LOADERS[dataset.loader].variants.values()
    return {*dataset.files, *(file for variant in variants for file in variant.files)}


def _own(dataset: DatasetConfig, turn: str) -> str:
    """The turn without the form's own wording, and without Spider's schemas, which resemble each other."""
    if dataset.loader == "spider":
        return turn.rpartition("/* Answer the following: ")[2].removesuffix(" */\nSELECT ")
    return turn
