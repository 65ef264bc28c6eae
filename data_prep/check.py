"""Every row of every data set in a folder, through loader, chat template and checksum."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from data_prep.sets import Form, dataset_names, forms
from talon_bench.embedded import ensure_embedded_target
from talon_bench.errors import UsageError
from talon_bench.paths import shipped
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.source import load_prompts
from talon_bench.schema import DecodeConfig

HEAD = "smollm2"
PUBLISHED = {True: "yes", False: "no", None: "unknown"}
ABSENT = {"rows": 0, "turns": 0, "left_out": 0, "over_window": 0, "over_head_window": 0, "longest": 0}


@dataclass(frozen=True)
class Windows:
    """Positions that the default target and its shortest-sighted head were made for."""

    target: int
    head: int


def check(folder: str) -> int:
    """Parse and render every row of every form of every data set; exit status 2 if one is absent or broken, else 0.

    Prints a table, a warning for each file that is not the published one, and last one line of JSON: an object per form
    with `rows`, `turns`, `left_out`, `over_window`, `over_head_window`, `longest`, `sha256_ok` (None where no sum of the file is
    known) and `source`.
    """
    renderer, windows = _default_target()
    # Several forms ask the same texts, and encoding is what takes the time.
    first_turn_ids = cache(partial(_first_turn_ids, renderer))
    report: dict[str, dict[str, Any]] = {}
    table = Table("data set", "file", "rows", "turns", "over window", "longest", "published file")
    notes: dict[str, None] = {}
    errors: dict[str, None] = {}
    for form in forms(dataset_names()):
        try:
            report[form.title], line = _measure(form, folder, first_turn_ids, windows)
        except UsageError as error:
            errors[f"error: {error}"] = None
            report[form.title] = {**ABSENT, "sha256_ok": False, "source": None}
            table.add_row(form.title, *"------")
            continue
        row = report[form.title]
        if row["sha256_ok"] is False:
            notes[f"warning: {form.dataset.name}: {line}"] = None
        cells = (row["rows"], row["turns"], row["over_window"], row["longest"])
        table.add_row(form.title, line.split()[0], *map(str, cells), PUBLISHED[row["sha256_ok"]])
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    for text in errors:
        print(text, file=sys.stderr)
    for text in notes:
        print(text)
    print(json.dumps(report))
    return 2 if errors else 0


def _measure(
    form: Form, folder: str, first_turn_ids: Callable[[tuple[str, ...]], int], windows: Windows
) -> tuple[dict[str, Any], str]:
    """(report, sentence on the file) of one form."""
    found = load_prompts(form.dataset, DataConfig(root=folder, source="local"))
    cap = form.dataset.max_new_tokens or DecodeConfig.max_new_tokens
    lengths = [first_turn_ids(prompt.turns) for prompt in found.prompts]
    report = {
        "rows": len(found.prompts),
        "turns": sum(len(prompt.turns) for prompt in found.prompts),
        "left_out": found.left_out,
        "over_window": sum(length + cap > windows.target for length in lengths),
        "over_head_window": sum(length + cap > windows.head for length in lengths),
        "longest": max(lengths),
        "sha256_ok": form.published(found),
        "source": found.source,
    }
    sums = " and ".join(filter(None, (found.sha256, found.companion_sha256)))
    return report, f"{found.origin} differs from the published file (sha256 {sums})"


def _first_turn_ids(renderer: ChatRenderer, turns: tuple[str, ...]) -> int:
    """Ids of the first turn. The later turns, whose length depends on the answers, only have to pass the template."""
    messages = [{"role": "user", "content": turns[0]}]
    length = len(renderer.render(messages))
    for turn in turns[1:]:
        messages += [{"role": "assistant", "content": "."}, {"role": "user", "content": turn}]
    if len(turns) > 1:
        renderer.render(messages)
    return length


def _default_target() -> tuple[ChatRenderer, Windows]:
    """The embedded default's tokenizer and windows; its weights are not loaded."""
    from transformers import AutoTokenizer

    folder = ensure_embedded_target()
    heads = OmegaConf.load(shipped("conf") / "head" / f"{HEAD}.yaml")
    folders = [shipped("heads") / head.shipped for head in heads.values()]
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(folder))
    return renderer, Windows(_positions(folder), min(map(_positions, folders)))


def _positions(folder: Path) -> int:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
