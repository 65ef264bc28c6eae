"""Configuration of a data set and of where data comes from; usable as OmegaConf structured configs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from talon_bench.errors import UsageError

SOURCES = ("auto", "local", "hub", "package", "samples", "prepared")

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@dataclass
class HubConfig:
    """A data set on the Hugging Face hub. `revision` None: the newest commit, which is recorded.

    `files` names one file of a repository that has no configuration of its own.
    """

    path: str
    split: str
    config: str | None = None
    files: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        if not _HUB_ID.fullmatch(self.path):
            raise UsageError(f"dataset.hub.path={self.path}: expected a hub id; set data.root for local files")


@dataclass
class DatasetConfig:
    """One data set: its loader, its sources, how it is asked, and which of its prompts are measured.

    `variant` names one of the loader's forms and `split` one of its parts; None takes the first. `files` are candidates
    relative to `data.root`, the first that exists is read. `package` names an installed package and the file in it, as
    "package/path/in/it". `max_new_tokens` None leaves the cap to the run; `system` None adds no system message (the chat
    template's own default stays). `turns` asks only the first so many turns of each prompt. Selection: `shuffle_seed`, then
    `offset`, then `limit`; or `ids`, in the order given. Raises UsageError for impossible values.
    """

    name: str
    loader: str
    variant: str | None = None
    split: str | None = None
    files: list[str] = field(default_factory=list)
    hub: HubConfig | None = None
    package: str | None = None
    max_new_tokens: int | None = None
    system: str | None = None
    turns: int | None = None
    limit: int | None = None
    offset: int = 0
    shuffle_seed: int | None = None
    ids: list[str] | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "turns", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"dataset.{name}={value}: expected 1 or more, or null for no limit of its own")
        if self.offset < 0:
            raise UsageError(f"dataset.offset={self.offset}: expected 0 or more")
        for name in self.files:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise UsageError(f"dataset.files: found {Path(name).name} outside data.root; name it relative to it")
        if self.package is not None and not all(self.package.partition("/")):
            raise UsageError(f"dataset.package={self.package}: expected package/path/of/the/file/in/it")
        if self.ids is not None:
            self._check_ids(self.ids)

    def _check_ids(self, ids: list[str]) -> None:
        others = {"limit": self.limit, "offset": self.offset or None, "shuffle_seed": self.shuffle_seed}
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise UsageError(f"dataset.ids names the prompts and their order: unset dataset.{given[0]}, or dataset.ids")
        if not ids:
            raise UsageError("dataset.ids=[]: expected at least one id, or null for all prompts")
        if repeated := sorted({name for name in ids if ids.count(name) > 1}):
            raise UsageError(f"dataset.ids: found {', '.join(repeated)} more than once; name each prompt once")


@dataclass
class DataConfig:
    """Where prompts come from. `root`: folder of local files. `source`: one of SOURCES.

    "auto" reads local files when `root` is given, else the set's package, else the samples that ship here. "prepared" reads
    what `python -m data_prep fetch` wrote to `root`.
    """

    root: str | None = None
    source: str = "auto"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UsageError(f"data.source={self.source}: expected one of {', '.join(SOURCES)}")
