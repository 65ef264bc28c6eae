"""Figures of finished runs in one print-readable, colour-blind-safe style, each with a caption (docs/figures.md).

speedup           measured speedup per method and data set with 95 % intervals
efficiency        draft passes against accepted length, oracle and equal predicted speedup
accepted_length   MAT of each prompt, by category
tree_depth        how deep TALON's trees are
tree_width        how wide their layers are
funnel            how deep accepted paths go, jointly and conditionally
heatmap           which places of the tree are accepted, by layer and rank
round_time        where the time of a verification round goes
sweep             speedup, MAT and eta against a swept setting
verify_cost       time of a verification against its number of tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from talon_bench.report.figures.accepted_length import accepted_length
from talon_bench.report.figures.efficiency import efficiency, heads
from talon_bench.report.figures.funnel import MIN_REACHED, funnel, has_drafts
from talon_bench.report.figures.heatmap import has_places, heatmap
from talon_bench.report.figures.plot import Plot
from talon_bench.report.figures.round_time import round_time
from talon_bench.report.figures.speedup import speedup
from talon_bench.report.figures.style import looks
from talon_bench.report.figures.sweep import sweep, sweep_table
from talon_bench.report.figures.trees import has_trees, tree_depth, tree_width
from talon_bench.report.figures.verify_cost import verify_cost
from talon_bench.report.groups import row_groups
from talon_bench.report.load import RunData
from talon_bench.report.sweeps import by_base, families

__all__ = [
    "MIN_REACHED",
    "Plot",
    "accepted_length",
    "all_plots",
    "efficiency",
    "funnel",
    "has_places",
    "has_trees",
    "heads",
    "heatmap",
    "round_time",
    "speedup",
    "sweep",
    "sweep_table",
    "tree_depth",
    "tree_width",
    "verify_cost",
]


def all_plots(runs: Sequence[RunData], folder: Path | Sequence[Path] | None = None) -> list[Plot]:
    """Every figure that `runs` allow, and one of the `verify_cost*.json` files at or below `folder` (one or several).

    Line-ups are drawn together for each target (and each set of settings that tells runs of one target apart); runs that
    sweep a setting are drawn together for each setting, and then for each method that they vary. Figures of single runs are
    those of the line-ups, of the sweeps only where there is no line-up.
    """
    known = looks(runs)
    plots = []
    found = families(runs)
    for field, members in found.items():
        plots.append(speedup(members, looks=known) if field is None else sweep(members, field))
        bases = by_base(members)
        for base, varied in bases.items():
            for part, peers in _by_target(varied).items():
                suffix = "".join(f"_{text}" for text in (field, base if len(bases) > 1 else "", part) if text)
                plots += _of_peers(peers, suffix, known, by_category=field is None)
    singles = found.get(None, runs)
    for run, stem in zip(singles, _stems(singles), strict=True):
        plots += [funnel(run, stem, known)] if has_drafts(run) else []
        plots += [heatmap(run, stem)] if has_places(run) else []
        plots.append(round_time(run, stem))
    folders = [folder] if isinstance(folder, Path) else folder or []
    costs = sorted({file for root in folders for file in root.rglob("verify_cost*.json")})
    return [*plots, verify_cost(costs)] if costs else plots


def _of_peers(peers: Sequence[RunData], suffix: str, known: dict, by_category: bool) -> list[Plot]:
    """Figures that lay the data sets of one target side by side."""
    kinds = heads(peers)
    plots = [efficiency(peers, head, suffix if len(kinds) == 1 else f"{suffix}_{head}", known) for head in kinds]
    if by_category and any(has_drafts(run) for run in peers):
        plots.append(accepted_length(peers, suffix, known))
    adaptive = [run for run in peers if has_trees(run)]
    if adaptive:
        plots += [tree_depth(adaptive, suffix, known), tree_width(adaptive, suffix, known)]
    return plots


def _by_target(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs by target and differing settings, under a file name part that is empty where there is one group."""
    groups: dict[str, list[RunData]] = {}
    for run, group in zip(runs, row_groups(runs), strict=True):
        groups.setdefault(group, []).append(run)
    if len(groups) == 1:
        return {"": list(runs)}
    parts = ["".join(char if char.isalnum() or char in ".-" else "-" for char in group).strip("-") for group in groups]
    return {
        part if parts.count(part) == 1 else f"{part}-{place}": members
        for place, (part, members) in enumerate(zip(parts, groups.values(), strict=True))
    }


def _stems(runs: Sequence[RunData]) -> list[str]:
    """A file name part per run: nothing for a single run, else its folder's name, numbered where shared."""
    names = [run.path.resolve().name for run in runs]
    if len(runs) == 1:
        return [""]
    return [f"_{text}" if names.count(text) == 1 else f"_{text}_{place}" for place, text in enumerate(names)]
