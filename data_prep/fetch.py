"""Reads data sets from their source, checks them, and writes them in one schema with a manifest."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.sets import Form, dataset_config, dataset_names, forms
from talon_bench.errors import UsageError
from talon_bench.prompts import prepared
from talon_bench.prompts.config import DataConfig
from talon_bench.prompts.prompt import PromptSet
from talon_bench.prompts.source import load_prompts

_COMMIT = re.compile(r"@([0-9a-f]{40})$")


def fetch(names: Sequence[str], source: str, root: str | None, out: str) -> int:
    """Write every form of the data sets (all of them for no names) to `out`; exit status 2 if one is missing, else 0.

    From the hub, forms with a file of their own are passed over: they are published elsewhere. What is missing is named with
    where to get it, and the others are still written.
    """
    for name in names:
        dataset_config(name)
    if source == "local" and root is None:
        raise UsageError("--source local needs --root: give the folder of original files, or --source hub")
    folder = Path(out).expanduser()
    if root is not None and folder.resolve() == Path(root).expanduser().resolve():
        raise UsageError("--out is the folder of the original files; give another one")
    errors: dict[str, None] = {}
    unreachable: set[str] = set()
    for form in forms(names or dataset_names()):
        if source == "hub" and (form.variant.files or form.dataset.name in unreachable):
            continue
        try:
            found = load_prompts(form.dataset, DataConfig(root=root, source=source))
        except UsageError as error:
            errors[f"error: {error}"] = None
            unreachable.add(form.dataset.name)
            continue
        file = prepared.write(folder, form.dataset.split, found, _facts(form, found))
        print(_line(file, found, form.published(found)))
    for text in errors:
        print(text, file=sys.stderr)
    return 2 if errors else 0


def _facts(form: Form, found: PromptSet) -> dict[str, object]:
    """What the manifest says of the source beside the set's own fields."""
    commit = _COMMIT.search(found.origin)
    return {
        "published": form.published(found),
        "commit": commit[1] if commit else None,
        "licence": form.loader.licence,
    }


def _line(file: str, found: PromptSet, published: bool | None) -> str:
    left_out = f", {found.left_out} rows left out" if found.left_out else ""
    unknown = "; no sum of the published file is known" if published is None and found.source == "local" else ""
    warning = "; not the published file" if published is False else unknown
    return f"{file}: {len(found.prompts)} prompts from {found.origin}{left_out}{warning}"
