"""Shared by all tests: one thread, reproducible property tests, and toy checkpoints on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

if TYPE_CHECKING:
    from talon_bench.drafters.head import DraftHead
    from talon_bench.target import Target

# Two threads on a busy machine wait for each other far longer than one works.
torch.set_num_threads(1)
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


class ToyFolders:
    """Toy checkpoints, each written when it is first asked for and shared by the whole session."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def target(self, architecture: str, **overrides: object) -> Path:
        """Folder of the toy target of this architecture; `overrides` replace keys of its config.json."""
        from toys import write_toy_target

        name = "-".join([architecture, *(f"{key}={value}" for key, value in sorted(overrides.items()))])
        folder = self._root / name
        return folder if folder.is_dir() else write_toy_target(folder, architecture, **overrides)

    def head(self, architecture: str, kind: str) -> Path:
        """Folder of the toy head ("eagle" or "eagle3") of the architecture's toy target."""
        from toys import write_toy_head

        folder = self._root / f"{architecture}-{kind}"
        return folder if folder.is_dir() else write_toy_head(folder, kind, self.target(architecture))


@pytest.fixture(scope="session")
def toy_folders(tmp_path_factory: pytest.TempPathFactory) -> ToyFolders:
    return ToyFolders(tmp_path_factory.mktemp("toys"))


@pytest.fixture(scope="session")
def stock(toy_folders: ToyFolders) -> Callable[..., torch.nn.Module]:
    """`stock("llama", dtype=..., **overrides)`: a fresh, untouched transformers model of a toy target."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()

    def load(architecture: str, dtype: torch.dtype = torch.float32, **overrides: object) -> torch.nn.Module:
        folder = toy_folders.target(architecture, **overrides)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    return load


@pytest.fixture(scope="session")
def toy_target(stock: Callable[..., torch.nn.Module]) -> Callable[[str], Target]:
    """`toy_target("llama")`: the wrapped float32 toy target, one for the session."""
    from talon_bench.target import Target

    made: dict[str, Target] = {}

    def get(architecture: str) -> Target:
        if architecture not in made:
            made[architecture] = Target.wrap(stock(architecture), architecture)
        return made[architecture]

    return get


@pytest.fixture(scope="session")
def toy_head(toy_folders: ToyFolders) -> Callable[[Target, str], DraftHead]:
    """`toy_head(target, "eagle3")`: a fresh head at work on a toy target, whose features are tapped for it."""
    from talon_bench.drafters.checkpoint import load_head
    from talon_bench.drafters.eagle1 import Eagle1Head
    from talon_bench.drafters.eagle3 import Eagle3Head

    def build(target: Target, kind: str) -> DraftHead:
        loaded = load_head(toy_folders.head(target.name, kind), target.shape, name=kind)
        target.tap(loaded.spec.feature_layers)
        return (Eagle3Head if kind == "eagle3" else Eagle1Head)(loaded, target)

    return build
