"""Shapes of the verified trees: nodes per layer and depth, from the column `widths` of `rounds`.

Depth 1 is the children of the root. A method that drafts nothing (AR) has no rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from talon_bench.stats import columns_of, ratios_of_sums

_BLOCK_ROWS = 1_000_000  # lists are flattened this many rounds at a time, which bounds memory


def layer_counts(rounds: pd.DataFrame) -> pd.DataFrame:
    """Columns method, depth, width, trees: how many verified trees have `width` nodes in layer `depth`."""
    codes, names = pd.factorize(rounds["method"])
    columns = ["method", "depth", "width"]
    parts = []
    for start in range(0, len(rounds), _BLOCK_ROWS):
        layers = list_array(rounds["widths"].iloc[start : start + _BLOCK_ROWS])
        lengths = pc.list_value_length(layers).to_numpy(zero_copy_only=False)
        owner = np.repeat(np.arange(start, start + len(layers)), lengths)
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        cells = (codes[owner], np.arange(len(owner)) - first + 1, layers.flatten().to_numpy(zero_copy_only=False))
        frame = pd.DataFrame(dict(zip(columns, cells, strict=True)))
        parts.append(frame.groupby(columns).size().rename("trees").reset_index())
    if not parts:
        return pd.DataFrame(columns=[*columns, "trees"])
    joined = pd.concat(parts).groupby(columns)["trees"].sum().reset_index()
    return joined.assign(method=np.asarray(names, dtype=object).astype(str)[joined["method"]])


def layer_widths(rounds: pd.DataFrame, low: float = 0.1, high: float = 0.9) -> pd.DataFrame:
    """One row per (method, depth): `trees` that have the layer, their `mean` nodes in it, quantiles `low` and `high`.

    Quantiles are of the trees, the smallest width that at least this share of them does not exceed.
    """
    rows = []
    for (method, depth), part in layer_counts(rounds).groupby(["method", "depth"], sort=False):
        part = part.sort_values("width")
        share = part["trees"].cumsum() / part["trees"].sum()
        ends = [part["width"].iloc[int(np.searchsorted(share, level - 1e-12))] for level in (low, high)]
        mean = (part["width"] * part["trees"]).sum() / part["trees"].sum()
        rows.append((method, depth, part["trees"].sum(), mean, *ends))
    return pd.DataFrame(rows, columns=["method", "depth", "trees", "mean", "low", "high"])


def tree_depths(rounds: pd.DataFrame) -> pd.DataFrame:
    """Columns method, depth, trees, share, low, high: how many verified trees are exactly this deep.

    `share` is over all verifications of the method, depth 0 being a round without drafted nodes; low and high are its 95 %
    bootstrap interval over prompts, nan for a single prompt.
    """
    depths = tree_depth(rounds)
    rows = []
    for method in rounds["method"].unique():
        mine = (rounds["method"] == method).to_numpy()
        if not depths[mine].any():
            continue
        prompts = pd.factorize(rounds["prompt_id"][mine])[0]
        counts = count_matrix(prompts, depths[mine])
        shares, low, high = share_intervals(counts, counts.sum(axis=1))
        trees = counts.sum(axis=0)
        rows += [
            (str(method), depth, int(trees[depth]), shares[depth], low[depth], high[depth])
            for depth in range(len(trees))
            if depth or trees[depth]
        ]
    return pd.DataFrame(rows, columns=["method", "depth", "trees", "share", "low", "high"])


def tree_depth(rounds: pd.DataFrame) -> np.ndarray:
    """int64 [rounds]: layers of each verified tree."""
    return pc.list_value_length(list_array(rounds["widths"])).to_numpy(zero_copy_only=False).astype(np.int64)


def list_array(lists: pd.Series) -> pa.ListArray:
    """A list column (Arrow-backed or of Python lists) as one Arrow array of integer lists; null reads as empty."""
    arrow = pa.array(lists, from_pandas=True)
    whole = arrow.combine_chunks() if isinstance(arrow, pa.ChunkedArray) else arrow
    empty = pa.scalar([], pa.list_(pa.int32()))
    return pc.fill_null(whole.cast(pa.list_(pa.int32())), empty)


def count_matrix(prompts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """int64 [prompts, largest value + 1]: how often each value occurs for each prompt."""
    shape = (int(prompts.max()) + 1, int(values.max()) + 1)
    return np.bincount(prompts * shape[1] + values, minlength=shape[0] * shape[1]).reshape(shape)


def share_intervals(counts: np.ndarray, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pooled shares `counts` / `totals`, each [columns], with the ends of their bootstrap intervals over prompts.

    counts is [prompts, columns], totals [prompts] or [prompts, columns]. nan where the total is 0; ends are nan for a single
    prompt.
    """
    totals = np.broadcast_to(totals if totals.ndim == 2 else totals[:, None], counts.shape)
    pairs = [columns_of(count, total, None, None) for count, total in zip(counts.T, totals.T, strict=True)]
    values, low, high = np.array([(one.value, one.low, one.high) for one in ratios_of_sums(pairs)]).T
    return values, low, high
