"""The draft trees of all runs as data for the tree explorer."""

from __future__ import annotations

from collections.abc import Sequence

from talon_bench.report.groups import folder_names, row_groups
from talon_bench.report.load import RunData
from talon_bench.report.sweeps import families, variants
from talon_bench.report.trees import DraftTree, label, load_trees, opening_pair

_DIGITS = 3  # of a probability: more than the drawing shows


def explorer_data(runs: Sequence[RunData]) -> list[dict]:
    """One entry per run that kept trees, those with several methods to compare first.

    `key` (the run's folder) and `name`, different for each run; `methods`: label by name; `pair`: those shown first;
    `pieces` and `labels`: token texts as they are and as nodes show them; `answers`: prompt, turn, method and `rounds`, each
    with node arrays in reading order (`DraftTree`), `tokens` being places in `pieces`.
    """
    found = []
    for key, name, run in zip(folder_names(runs), _names(runs), runs, strict=True):
        answers = load_trees(run)
        if not answers:
            continue
        places: dict[str, int] = {}
        entries = [
            {"prompt": prompt, "turn": turn, "method": method, "rounds": [_round(tree, places) for tree in trees]}
            for (prompt, turn, method), trees in answers.items()
        ]
        drafting = {entry["method"] for entry in entries}
        methods = [method for method in run.methods if method in drafting]
        found.append(
            {
                "key": key,
                "name": name,
                "methods": {method: run.labels[method] for method in methods},
                "pair": opening_pair(run, methods),
                "pieces": list(places),
                "labels": [label(piece) for piece in places],
                "answers": entries,
            }
        )
    return sorted(found, key=lambda entry: len(entry["methods"]) < 2)


def _names(runs: Sequence[RunData]) -> list[str]:
    """What each run is called: row heading, data set, and the method and setting that it sweeps, if any."""
    names = {}
    for field, members in families(runs).items():
        bases = [sorted({variant.base for variant in variants(run)}) for run in members]
        groups = row_groups(members, bases) if field else row_groups(members)
        for group, own, run in zip(groups, bases, members, strict=True):
            names[run.path] = f"{group} / {run.dataset}" + (f", {', '.join(own)} by {field}" if field else "")
    return [names[run.path] for run in runs]


def _round(tree: DraftTree, places: dict[str, int]) -> dict:
    """A verification; new token texts get the next free place."""
    return {
        "tokens": [places.setdefault(piece, len(places)) for piece in tree.pieces],
        "depths": tree.depths,
        "probabilities": [None if value is None else float(f"{value:.{_DIGITS}g}") for value in tree.probabilities],
        "accepted": tree.accepted,
        "emitted": tree.emitted,
        "passes": tree.draft_passes,
    }
