"""What each prompt gave: sums per (method, prompt), and pooled ratios of them with bootstrap intervals over prompts."""

from __future__ import annotations

import pandas as pd

from talon_bench.report.layers import tree_depth
from talon_bench.stats import Estimate, ratio_of_sums


def prompt_sums(turns: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Index (method, prompt_id), in the order of the rounds; expects measured rows.

    Columns: `category`; sums over the prompt's verifications: `rounds`, `emitted`, `draft_passes`, `depth` (layers of the
    verified trees), `decode_ms`; and `mat` = emitted / rounds. Prompts that ended at the prefill's token are left out.
    """
    keys = ["method", "prompt_id"]
    frame = rounds[[*keys, "emitted", "draft_passes"]].assign(rounds=1, depth=tree_depth(rounds))
    sums = frame.groupby(keys, observed=True, sort=False)[["rounds", "emitted", "draft_passes", "depth"]].sum()
    of_turns = turns.groupby(keys, observed=True).agg(decode_ms=("decode_ms", "sum"), category=("category", "first"))
    joined = sums.join(of_turns)
    joined.index = pd.MultiIndex.from_arrays(
        [joined.index.get_level_values(key).astype(str) for key in keys], names=keys
    )
    return joined.assign(mat=joined["emitted"] / joined["rounds"])


def pooled(sums: pd.DataFrame, top: str, bottom: str = "rounds") -> Estimate:
    """sum of column `top` / sum of column `bottom` over the rows (prompts) of `sums`, with its 95 % interval."""
    return ratio_of_sums(sums[top], sums[bottom])


def length_spread(turns: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """How far accepted length varies, one row per drafting method; expects measured rows.

    Columns: `prompts`, `MAT` (pooled), `prompt mean`, `prompt sd`, `prompt min`, `prompt max` (of the prompts' own MAT),
    `round sd` (of emitted tokens over all verifications), `depth` (mean layers of the trees). Standard deviations are of the
    sample, nan for a single value.
    """
    sums = prompt_sums(turns, rounds)
    sums = sums[sums.groupby(level="method")["depth"].transform("sum") > 0]
    by_method = sums.groupby(level="method", sort=False)
    totals = by_method[["emitted", "rounds", "depth"]].sum()
    spread = by_method["mat"].agg(["size", "mean", "std", "min", "max"])
    spread.columns = ["prompts", "prompt mean", "prompt sd", "prompt min", "prompt max"]
    spread.insert(1, "MAT", totals["emitted"] / totals["rounds"])
    deviation = rounds["emitted"].groupby(rounds["method"].astype(str)).std()
    return spread.assign(**{"round sd": deviation.reindex(spread.index), "depth": totals["depth"] / totals["rounds"]})
