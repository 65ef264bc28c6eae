"""Acceptance by place in the tree: rates per depth with intervals, and rates per layer and rank (paper, Figures 3 and 10)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from talon_bench.metrics import accepted_by_rank
from talon_bench.report.layers import count_matrix, layer_counts, share_intervals, tree_depth


def depth_rates(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row per (method, depth) with intervals, counted before cutting at EOS and cap.

    Columns: method, depth, `before` (accepted paths that reach depth - 1; all verifications for depth 1), `reached` (those
    that reach this depth), `joint` = reached / verifications, `conditional` = reached / before, and joint_low, joint_high,
    conditional_low, conditional_high: 95 % bootstrap intervals over prompts, nan for a single prompt. Depths go to the
    deepest layer of the method's trees.
    """
    layers, accepted = tree_depth(rounds), rounds["accepted"].to_numpy(np.int64)
    rows = []
    for method in rounds["method"].unique():
        mine = (rounds["method"] == method).to_numpy()
        deepest = layers[mine].max()
        if deepest == 0:
            continue
        prompts = pd.factorize(rounds["prompt_id"][mine])[0]
        counts = np.zeros((prompts.max() + 1, deepest + 1), np.int64)
        paths = count_matrix(prompts, accepted[mine])
        counts[:, : paths.shape[1]] = paths
        reached = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        joint = np.column_stack(share_intervals(reached[:, 1:], reached[:, 0]))
        conditional = np.column_stack(share_intervals(reached[:, 1:], reached[:, :-1]))
        total = reached.sum(axis=0)
        rows += [
            (str(method), depth, total[depth - 1], total[depth], *joint[depth - 1], *conditional[depth - 1])
            for depth in range(1, deepest + 1)
        ]
    rates = [f"{rate}{end}" for rate in ("joint", "conditional") for end in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=["method", "depth", "before", "reached", *rates])


def place_rates(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row per (method, depth, rank) that some verified tree has; rank counts from 0 by score inside the layer.

    Columns: method, depth, rank, `rounds` (verifications), `verified` (trees with a node there), `accepted` (how often it
    was accepted), `share` = accepted / rounds, so that a layer's shares add up to its joint rate of `depth_rates`.
    """
    layers = layer_counts(rounds)
    columns = ["method", "depth", "rank", "rounds", "verified", "accepted", "share"]
    if layers.empty:
        return pd.DataFrame(columns=columns)
    group, keys = pd.factorize(pd.MultiIndex.from_frame(layers[["method", "depth"]]))
    trees = np.zeros((len(keys), layers["width"].max() + 1), np.int64)
    np.add.at(trees, (group, layers["width"]), layers["trees"])
    verified = trees[:, ::-1].cumsum(axis=1)[:, -2::-1]  # a place of rank r is in the trees wider than r
    row, rank = np.nonzero(verified)
    places = keys[row].to_frame(index=False, name=["method", "depth"]).assign(rank=rank, verified=verified[row, rank])
    accepted = accepted_by_rank(rounds).astype({"method": str, "depth": int, "rank": int})
    frame = places.merge(accepted, on=["method", "depth", "rank"], how="left")
    counts = rounds.groupby(rounds["method"].astype(str)).size()
    frame = frame.assign(rounds=frame["method"].map(counts), accepted=frame["count"].fillna(0).astype(int))
    return frame.assign(share=frame["accepted"] / frame["rounds"])[columns]
