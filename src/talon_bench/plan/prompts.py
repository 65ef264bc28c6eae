"""How many prompts a job has and how long they are: read where they are at hand, else as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from talon_bench.prompts import LOADERS
from talon_bench.prompts.config import DataConfig, DatasetConfig
from talon_bench.prompts.prompt import Variant
from talon_bench.prompts.source import load_prompts

CHARACTERS_PER_TOKEN = 3.0
"""On the low side for English and code, so that lengths are on the high side."""
TEMPLATE_TOKENS = 64
"""Room for what a chat template writes around one turn."""


@dataclass(frozen=True)
class Published:
    """One form of a published data set. `asked`: how many prompts have a first turn, a second turn, and so on; `longest`: the
    characters of the longest first turn, second turn, and so on.

    `about` names those of the two that are no counts of the published file; the others are, and a test counts them again.
    """

    asked: tuple[int, ...]
    longest: tuple[int, ...]
    about: tuple[str, ...] = ()


_LENGTH = ("longest",)
_BOTH = ("asked", "longest")
_UNKNOWN = Published((1_000,), (12_000,), _BOTH)

PUBLISHED: dict[str, dict[str, Published]] = {
    "mt_bench": {"plain": Published((80, 80), (1_642, 1_117)), "eagle80": Published((80, 80), (1_642, 1_117))},
    "gsm8k": {
        "bare": Published((1_319,), (848,)),
        "cot8": Published((1_319,), (2_995,)),
        "sglang5": Published((1_314,), (3_078,)),
        "spec_bench": Published((80,), (597,)),
        "eagle80": Published((80,), (529,)),
    },
    "humaneval": {
        "eagle": Published((164,), (1_389,)),
        "line_break": Published((164,), (1_390,)),
        "completion": Published((164,), (1_360,)),
        "eagle80": Published((80,), (1_389,)),
    },
    "mbpp": {
        "zero_shot": Published((500,), (4_389,)),
        "paper3": Published((500,), (5_902,)),
        "bare": Published((500,), (191,)),
        "zero_shot all": Published((974,), (4_389,)),
        "paper3 all": Published((971,), (5_902,)),
        "bare all": Published((974,), (249,)),
    },
    "mbpp_sanitized": {
        "zero_shot": Published((257,), (2_801,)),
        "paper3": Published((257,), (4_362,)),
        "bare": Published((257,), (252,)),
        "zero_shot all": Published((427,), (2_801,)),
        "paper3 all": Published((424,), (4_362,)),
        "bare all": Published((427,), (410,)),
    },
    "spider": {"code": Published((1_034,), (2_977,)), "openai": Published((1_034,), (1_323,))},
    "alpaca": {
        "eagle": Published((52_002,), (2_500,), _LENGTH),
        "with_input": Published((52_002,), (5_000,), _LENGTH),
        "stanford": Published((52_002,), (5_200,), _LENGTH),
        "eagle80": Published((80,), (89,)),
    },
    "qa": {"eagle": Published((3_610,), (110,), _LENGTH), "eagle80": Published((80,), (82,))},
    "cnn_dm": {"eagle": Published((11_490,), (12_000,), _LENGTH), "eagle80": Published((80,), (6_847,))},
    "spec_bench": {"plain": Published((480, 80), (6_847, 1_117))},
} | {
    name: {
        "first": Published((94_145,), (40_000,), _BOTH),
        "multi": Published((94_145,) * 8, (40_000,) * 8, _BOTH),
    }
    for name in ("sharegpt", "sharegpt_multi")
}
"""By data set, then by variant, followed by the split where it is not the loader's first.

Counts are those of the original files that docs/datasets.md lists, in each form; of Alpaca (52,002), QA (3,610) and CNN/DM
(11,490) those of the data set's card. ShareGPT's file has 94,145 conversations, of which some are left out.
"""
MEGABYTES = {
    "mt_bench": 0.1,
    "gsm8k": 2.7,
    "humaneval": 0.1,
    "mbpp": 0.2,
    "mbpp_sanitized": 0.1,
    "spider": 1.0,
    "sharegpt": 673,
    "sharegpt_multi": 673,
    "alpaca": 24,
    "qa": 4.7,
    "cnn_dm": 837,
}
"""About what the hub sends. All splits of a configuration are fetched, whichever is asked for."""


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
        tokens = [_tokens([len(turn) for turn in prompt.turns], cap) for prompt in found.prompts]
        answers = sum(len(prompt.turns) for prompt in found.prompts)
        return Prompts(len(found.prompts), answers, max(tokens), found.source, 0.0)
    loader = LOADERS[dataset.loader]
    variant, first = dataset.variant or next(iter(loader.variants)), next(iter(loader.splits), None)
    form = variant if dataset.split in (None, first) else f"{variant} {dataset.split}"
    known = PUBLISHED.get(dataset.name, {}).get(form, _UNKNOWN)
    available = max(known.asked[0] - dataset.offset, 1)
    count = len(dataset.ids) if dataset.ids else min(available, dataset.limit or available)
    turns = min(len(known.asked), dataset.turns or len(known.asked))
    notes = (
        _lacking(dataset, data, loader.variants.get(variant)),
        _about(dataset.name, known, turns, counted=bool(dataset.ids) or count < available),
    )
    return Prompts(
        count=count,
        answers=sum(min(count, asked) for asked in known.asked[:turns]),
        longest=_tokens(known.longest[:turns], cap),
        source=_source(known),
        megabytes=MEGABYTES.get(dataset.name, 0.0),
        note="; ".join(note for note in notes if note) or None,
    )


def _source(known: Published) -> str:
    if known is _UNKNOWN:
        return "a guess: this data set is not known"
    if not known.about:
        return "counted in the published file"
    return "about the published count" if "asked" in known.about else "published count"


def _about(name: str, known: Published, turns: int, *, counted: bool) -> str | None:
    """What is no exact number. `counted`: how many prompts there are is known, whatever the file holds."""
    if not known.about:
        return None
    parts = [f"turns of up to about {max(known.longest[:turns]):,} characters"]
    if "asked" in known.about and turns > 1:
        parts.append(f"about {turns} a prompt")
    if "asked" in known.about and not counted:
        parts.append(f"about {known.asked[0]:,} prompts")
    if size := MEGABYTES.get(name):
        parts.append(f"about {size:g} MB to fetch")
    return f"{name}: {', '.join(parts)}"


def _lacking(dataset: DatasetConfig, data: DataConfig, variant: Variant | None) -> str | None:
    """What a run with rows of the hub would refuse for want of local files, with the fix; short enough for a line."""
    companion = LOADERS[dataset.loader].companion
    if variant is not None and variant.files:
        what, fix = f"reads {variant.files[0]}", "set data.root to the folder that holds it, without data.source=hub"
    elif dataset.hub is None:
        what, fix = "has files of its own", "set data.root to the folder that holds them, without data.source=hub"
    elif companion is None:
        return None
    elif data.root is None:
        what, fix = f"needs {companion.files[0]}", "set data.root to the folder that holds it"
    elif any((Path(data.root).expanduser() / file).is_file() for file in companion.files):
        return None
    else:
        what, fix = f"needs {companion.files[0]}", "put it into data.root"
    return f"{dataset.name} {what}, which the hub lacks: {fix}"


def _tokens(turns: Sequence[int], cap: int) -> int:
    """Tokens at the start of the last answer, from the characters of each turn."""
    asked = sum(ceil(characters / CHARACTERS_PER_TOKEN) + TEMPLATE_TOKENS for characters in turns)
    return asked + (len(turns) - 1) * cap
