"""What rows are called: which runs share them, what tells the others apart, which methods carry a mark."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from talon_bench.report.load import RunData
from talon_bench.report.notes import LOSSY_MARK
from talon_bench.report.sweeps import variants

_NO_SETTING = ("label", "lossless")  # which rows show anyway


def row_groups(runs: Sequence[RunData], kinds: Sequence[Collection[str]] | None = None) -> list[str]:
    """The row heading of each run: its target, and whatever tells it from other runs of the same target.

    Runs that no setting tells apart and that would fill the same cells get their folders' names. `kinds` holds what each
    run has rows of, such as the methods that it sweeps: runs with none in common may share heading and data set. Without
    `kinds` any two runs of a data set fill the same cells.
    """
    parts = [_settings(run) for run in runs]
    heads = []
    for run, own in zip(runs, parts, strict=True):
        peers = [other for peer, other in zip(runs, parts, strict=True) if peer.target == run.target]
        differing = [text for key, text in own.items() if any(peer.get(key, text) != text for peer in peers)]
        heads.append(f"{run.target} ({', '.join(differing)})" if differing else run.target)
    owned = [{""}] * len(runs) if kinds is None else [set(kind) for kind in kinds]
    places = list(zip(heads, (run.dataset for run in runs), owned, strict=True))

    def shared(head: str, dataset: str, own: set[str]) -> bool:
        return sum((head, dataset) == place[:2] and not own.isdisjoint(place[2]) for place in places) > 1

    names = folder_names(runs)
    return [f"{place[0]} [{name}]" if shared(*place) else place[0] for place, name in zip(places, names, strict=True)]


def folder_names(runs: Sequence[RunData]) -> list[str]:
    """The name of each run's folder, numbered from the second run on that has it, so that no two are equal."""
    names: list[str] = []
    for run in runs:
        name = text = run.path.resolve().name
        number = 2
        while text in names:
            text, number = f"{name} ({number})", number + 1
        names.append(text)
    return names


def marked(run: RunData, method: str) -> str:
    """The method's label, with a mark if it is not lossless."""
    return run.labels[method] + ("" if run.methods[method]["lossless"] else f" {LOSSY_MARK}")


def _settings(run: RunData) -> dict[tuple[str, ...], str]:
    """What may tell two runs of one target apart, as text; only what both of them have counts."""
    machine, decode, checkpoint = run.info["provenance"], run.info["decode"], run.info.get("checkpoint", {})
    found = {
        ("temperature",): f"T = {decode['temperature']:g}",
        ("dtype",): str(machine.get("dtype")),
        ("cap",): f"max {decode['max_new_tokens']} tokens",
        ("hardware",): str(machine.get("gpu") or machine.get("cpu")),
        ("threads",): f"{machine.get('threads')} threads",
    }
    if decode["temperature"] > 0:
        found |= {("top-p",): f"top-p {decode['top_p']:g}", ("top-k",): f"top-k {decode['top_k']}"}
    if engine := checkpoint.get("engine"):
        found["engine",] = f"{engine} engine"
    hashes = {"target": checkpoint.get("sha256")}
    hashes |= {f"{kind} head": head.get("sha256") for kind, head in run.info["heads"].items()}
    found |= {("sha256", name): f"{name} {text[:8]}" for name, text in hashes.items() if text}
    swept = {variant.method: variant for variant in variants(run)}
    for method, own in run.methods.items():
        variant = swept.get(method)
        name, varied = (variant.base, variant.field) if variant else (run.labels[method], None)
        for field, value in own.items():
            if field not in (*_NO_SETTING, varied):
                found["swept" if variant else "method", name, field] = f"{name} {field} {_text(value)}"
    return found


def _text(value: object) -> str:
    """A setting's value; of a list, such as a static tree, the first digits of its hash."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8] if isinstance(value, list) else str(value)
