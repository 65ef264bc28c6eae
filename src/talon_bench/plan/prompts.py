"""How many prompts a job has and how long they are: read where they are at hand, else as published."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.prompts.source import load_prompts

CHARACTERS_PER_TOKEN = 3.0
"""On the low side for English and code, so that lengths are on the high side."""
TEMPLATE_TOKENS = 64
"""Room for what a chat template writes around one turn."""


@dataclass(frozen=True)
class Published:
    """A published data set: prompts asked by default, turns of a prompt, characters of the longest turn, download in MB."""

    prompts: int
    turns: int
    longest: int
    megabytes: float


PUBLISHED = {
    "mt_bench": Published(80, 2, 2_200, 0.1),
    "gsm8k": Published(1_319, 1, 1_000, 0.5),
    "humaneval": Published(164, 1, 1_400, 0.1),
    "mbpp": Published(500, 1, 5_000, 0.3),
    "mbpp_sanitized": Published(257, 1, 3_000, 0.2),
    "spider": Published(1_034, 1, 6_000, 0.4),
    "sharegpt": Published(94_145, 1, 40_000, 642),
    "sharegpt_multi": Published(94_145, 8, 40_000, 642),
    "alpaca": Published(52_002, 1, 2_500, 24),
    "qa": Published(3_610, 1, 110, 0.6),
    "cnn_dm": Published(11_490, 1, 12_000, 30),
    "spec_bench": Published(480, 2, 12_000, 1),
}
"""By data set, in its default variant and split; lengths rounded up."""
EAGLE80 = 80
"""Questions of EAGLE's own files, the variant `eagle80`."""


@dataclass(frozen=True)
class Prompts:
    """`answers` counts the turns; `longest` is the longest sequence at the start of an answer, in tokens, earlier answers
    of the conversation included. `source` says where the counts come from."""

    count: int
    answers: int
    longest: int
    source: str
    megabytes: float
    note: str | None = None


def prompts_of(dataset: DatasetConfig, data: DataConfig, cap: int) -> Prompts:
    """The job's prompts; raises what reading them would raise, except for the hub's, which are not fetched."""
    if data.source != "hub":
        found = load_prompts(dataset, data)
        tokens = [_tokens(prompt.turns, cap) for prompt in found.prompts]
        answers = sum(len(prompt.turns) for prompt in found.prompts)
        return Prompts(len(found.prompts), answers, max(tokens), found.source, 0.0)
    note = None
    if LOADERS[dataset.loader].companion is not None and data.root is None:
        note = f"{dataset.name} needs {LOADERS[dataset.loader].companion.files[0]}, which the hub lacks: set data.root"
    if dataset.hub is None:
        note = f"{dataset.name} is not on the hub: set data.root to local files"
    known = PUBLISHED.get(dataset.name, Published(1_000, 1, 12_000, 0))
    count = EAGLE80 if dataset.variant == "eagle80" else known.prompts
    count = len(dataset.ids) if dataset.ids else min(max(count - dataset.offset, 1), dataset.limit or count)
    turns = min(known.turns, dataset.turns or known.turns)
    longest = _tokens(("x" * known.longest,) * turns, cap)
    source = "published count" if dataset.name in PUBLISHED else "a guess: this data set is not known"
    return Prompts(count, count * turns, longest, source, known.megabytes, note)


def _tokens(turns: tuple[str, ...], cap: int) -> int:
    """Tokens at the start of the last answer."""
    asked = sum(ceil(len(turn) / CHARACTERS_PER_TOKEN) + TEMPLATE_TOKENS for turn in turns)
    return asked + (len(turns) - 1) * cap
