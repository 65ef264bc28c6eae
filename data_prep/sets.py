"""The data sets as configured in `conf/dataset/`, and every form in which each can be asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from omegaconf import OmegaConf

from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DatasetConfig
from talon_bench.prompts.prompt import Loader, PromptSet, Variant


@dataclass(frozen=True)
class Form:
    """One data set, variant and split. `title` is the name of the set, with what differs from its config."""

    dataset: DatasetConfig
    title: str

    @property
    def loader(self) -> Loader:
        return LOADERS[self.dataset.loader]

    @property
    def variant(self) -> Variant:
        return self.loader.variants[self.dataset.variant]

    def published(self, found: PromptSet) -> bool | None:
        """Whether what was read is what was published, the companion file included; None where no sum of it is known.

        Sums are known of files, not of the hub's rows, and not of the full files of Alpaca, QA and CNN/DM.
        """
        summed, companion = self.loader.summed_files, self.loader.companion
        if found.source == "hub" or (not self.variant.files and summed and found.origin not in summed):
            return None
        return found.sha256 in (self.variant.published_sha256 or self.loader.published_sha256) and (
            companion is None or found.companion_sha256 in companion.published_sha256
        )


def dataset_names() -> list[str]:
    """Names of all data sets, in alphabetical order."""
    return sorted(file.stem for file in (shipped("conf") / "dataset").glob("*.yaml"))


def dataset_config(name: str) -> DatasetConfig:
    """The data set's config as shipped in `conf/dataset/`; UsageError for a name that is not there."""
    if name not in dataset_names():
        raise UsageError(f"{name}: no such data set; expected one of {', '.join(dataset_names())}")
    shipped_file = OmegaConf.load(shipped("conf") / "dataset" / f"{name}.yaml")
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DatasetConfig), shipped_file))


def forms(names: Sequence[str]) -> Iterator[Form]:
    """Every variant and split of the data sets, each set's own form first."""
    for name in names:
        own = dataset_config(name)
        loader = LOADERS[own.loader]
        pairs = [(variant, split) for variant in loader.variants for split in loader.splits or [None]]
        for variant, split in sorted(pairs, key=lambda pair: pair != (own.variant, own.split)):
            differing = [f"variant={variant}"] * (variant != own.variant) + [f"split={split}"] * (split != own.split)
            yield Form(replace(own, variant=variant, split=split), " ".join([name, *differing]))
