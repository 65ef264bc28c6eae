"""Metrics of a run as pure functions of its records: no model, no clock, no configuration.

`turns` has one row per (prompt_id, turn, method) and `rounds` one row per verification (`records.py`
documents both). Symbols and the cost model are those of the TALON paper, section 5.3 and appendix D:

    MAT                 tokens per verification, the target's own included, pooled, without the prefill's
    eta                 draft passes per verification, the catch-up pass over newly accepted tokens included
    gamma               time of a draft pass / time of a plain target pass of AR in the same run; a head's first pass
                        over the prompt is one of them
    predicted speedup   MAT / (1 + gamma * eta)
    speedup             AR decode time per emitted token / the method's, on the turns both completed

Functions that return a Series or a DataFrame index it by method. They expect measured rows only; `measured`
drops the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from talon_bench.errors import UsageError
from talon_bench.stats import Estimate, ratios_of_sums

BASELINE = "ar"
EAGER = "ar_eager"
"""AR launched kernel by kernel, as papers measure it: the second baseline of a run that has it (docs/engine.md)."""
KEYS = ["prompt_id", "turn", "method"]
PAIR = ("reference_ms", "reference_tokens", "method_ms", "method_tokens")

_BLOCK_ROWS = 1_000_000  # list columns are flattened this many rows at a time, which bounds memory


@dataclass(frozen=True)
class MethodSummary:
    """What one method did in one run; times in ms, shares as parts of decode time, nan where undefined."""

    method: str
    prompts: int
    turns: int
    failed: int
    skipped: int
    mat: float
    prompt_mean_mat: float
    eta: float
    gamma: float
    tokens_per_second: float
    speedup: float
    speedup_ci95: tuple[float, float]
    mean_of_ratios: float
    eagle_speedup: float
    predicted_speedup: float
    draft_share: float
    verify_share: float
    overhead_share: float
    round_ms: float
    ttft_ms: float
    equal_prompts: int
    compared_prompts: int
    worst_margin: float

    @property
    def lossless(self) -> bool | None:
        """Whether every compared prompt gave AR's ids; None if none was compared (temperature above 0)."""
        return self.equal_prompts == self.compared_prompts if self.compared_prompts else None


def measured(turns: pd.DataFrame, rounds: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The turns with status ok and the rounds that belong to them."""
    ok = turns["status"] == "ok"
    if ok.all():
        return turns, rounds
    dropped = pd.MultiIndex.from_frame(turns.loc[~ok, KEYS].astype({"prompt_id": str, "method": str}))
    suspects = rounds["prompt_id"].isin(dropped.get_level_values("prompt_id"))
    keys = rounds.loc[suspects, KEYS].astype({"prompt_id": str, "method": str})
    keep = ~suspects.to_numpy()
    keep[suspects.to_numpy()] = ~pd.MultiIndex.from_frame(keys).isin(dropped)
    return turns[ok], rounds[keep]


def decode_tokens(turns: pd.DataFrame) -> pd.Series:
    """Tokens emitted by verifications, per turn: all new tokens but the first, which the prefill gave."""
    return (turns["new_tokens"] - 1).clip(lower=0)


def mat(rounds: pd.DataFrame) -> pd.Series:
    """Mean accepted tokens: emitted tokens / verifications, pooled, after cutting at EOS and cap."""
    emitted = rounds.groupby("method", observed=True)["emitted"]
    return emitted.sum() / emitted.size()


def eta(rounds: pd.DataFrame) -> pd.Series:
    """Draft passes per verification; 0 for AR."""
    passes = rounds.groupby("method", observed=True)["draft_passes"]
    return passes.sum() / passes.size()


def gamma(turns: pd.DataFrame, baseline: str = BASELINE) -> pd.Series:
    """(draft time / draft passes) of a method / (verify time / rounds) of AR; nan without draft passes."""
    sums = _sums(turns, "draft_ms", "draft_passes", "verify_ms", "rounds")
    if baseline not in sums.index:
        return pd.Series(np.nan, index=sums.index)
    plain_pass_ms = (sums["verify_ms"] / sums["rounds"])[baseline]
    return sums["draft_ms"] / sums["draft_passes"].where(sums["draft_passes"] > 0) / plain_pass_ms


def predicted_speedup(mat: pd.Series, eta: pd.Series, gamma: pd.Series) -> pd.Series:
    """The cost model MAT / (1 + gamma * eta); without draft passes, where gamma is undefined, MAT itself."""
    return mat / (1 + (gamma * eta).where(eta != 0, 0.0))


def time_shares(turns: pd.DataFrame) -> pd.DataFrame:
    """Parts of decode time, columns draft, verify and other."""
    sums = _sums(turns, "draft_ms", "verify_ms", "other_ms", "decode_ms")
    shares = sums[["draft_ms", "verify_ms", "other_ms"]].div(sums["decode_ms"], axis=0)
    return shares.set_axis(["draft", "verify", "other"], axis=1)


def tokens_per_second(turns: pd.DataFrame) -> pd.Series:
    """Emitted tokens per second of decode time; prefill and its token excluded."""
    sums = _sums(turns.assign(tokens=decode_tokens(turns)), "tokens", "decode_ms")
    return 1000 * sums["tokens"] / sums["decode_ms"]


def prompt_mean_mat(turns: pd.DataFrame) -> pd.Series:
    """Unweighted mean of the prompts' own MAT; prompts that ended at the prefill's token have none."""
    frame = turns.assign(tokens=decode_tokens(turns))
    sums = frame.groupby(["method", "prompt_id"], observed=True)[["tokens", "rounds"]].sum()
    sums = sums[sums["rounds"] > 0]
    return (sums["tokens"] / sums["rounds"]).groupby(level="method", observed=True).mean()


def paired_prompts(turns: pd.DataFrame, reference: str, method: str) -> pd.DataFrame:
    """Totals per prompt over the turns that both methods completed: index prompt_id, columns as in `PAIR`."""
    frame = turns.assign(ms=turns["decode_ms"], tokens=decode_tokens(turns))
    sides = [
        frame[frame["method"] == name].set_index(["prompt_id", "turn"])[["ms", "tokens"]].add_prefix(prefix)
        for name, prefix in ((reference, "reference_"), (method, "method_"))
    ]
    return sides[0].join(sides[1], how="inner").groupby(level="prompt_id", observed=True).sum()


def speedup(pairs: pd.DataFrame) -> Estimate:
    """Headline ratio of `paired_prompts`: decode time per emitted token of the reference / of the method."""
    return speedups([pairs])[0]


def speedups(pairs: Sequence[pd.DataFrame]) -> list[Estimate]:
    """`speedup` of many pairs; those over equally many prompts share their bootstrap draws, which saves time."""
    return ratios_of_sums([columns[list(PAIR)].to_numpy(np.float64) for columns in pairs])


def speedups_over(
    turns: pd.DataFrame, baseline: str, methods: Sequence[str]
) -> tuple[dict[str, pd.DataFrame], dict[str, Estimate]]:
    """`paired_prompts` and `speedup` over `baseline` by method; the baseline's own speedup is 1 by definition."""
    pairs = {name: paired_prompts(turns, baseline, name) for name in methods}
    ratios = dict(zip(pairs, speedups(list(pairs.values())), strict=True))
    return pairs, {name: Estimate(1.0, 1.0, 1.0) if name == baseline else ratio for name, ratio in ratios.items()}


def paired_cells(turns: pd.DataFrame, reference: str, methods: Sequence[str]) -> np.ndarray:
    """`paired_prompts` of several methods as one array [prompts of the reference, methods, 4], columns as in `PAIR`.

    A prompt that a method did not complete counts nothing there, on either side of the ratio.
    """
    prompts = turns.loc[turns["method"] == reference, "prompt_id"].astype(str).unique()
    cells = []
    for method in methods:
        pairs = paired_prompts(turns, reference, method)[list(PAIR)]
        cells.append(pairs.set_axis(pairs.index.astype(str)).reindex(prompts, fill_value=0).to_numpy(np.float64))
    return np.stack(cells, axis=1)


def mean_of_ratios(pairs: pd.DataFrame) -> float:
    """Unweighted mean over prompts of (reference ms per token) / (method ms per token)."""
    reference, method = _speeds(pairs)
    return float((method / reference).mean())


def eagle_speedup(pairs: pd.DataFrame) -> float:
    """EAGLE's `speed.py`: mean over prompts of the method's tokens/s / mean of the reference's.

    It equals `mean_of_ratios` when the reference is equally fast on every prompt. Here prefill stays
    excluded, there it is not.
    """
    reference, method = _speeds(pairs)
    return float(method.mean() / reference.mean()) if len(reference) else math.nan


def equality(turns: pd.DataFrame) -> pd.DataFrame:
    """Lossless check: `equal` of `compared` prompts gave AR's ids in every turn.

    `worst_margin` is the largest gap of AR's two best logits at a divergence: small is a tie, large is a bug.
    """
    known = turns[turns["equals_ar"].notna()]
    same = known["equals_ar"].astype(bool)
    prompts = same.groupby([known["method"], known["prompt_id"]], observed=True).all().groupby(level=0, observed=True)
    margins = known.loc[~same, "margin"].astype(float).groupby(known["method"], observed=True).max()
    return pd.DataFrame({"equal": prompts.sum(), "compared": prompts.size(), "worst_margin": margins})


def accepted_by_rank(rounds: pd.DataFrame) -> pd.DataFrame:
    """Accepted nodes by place (paper figure 3): columns method, depth, rank, count.

    Depth counts from 1 (children of the root), rank from 0 by score inside the layer.
    """
    codes, methods = pd.factorize(rounds["method"])
    paths = _list_array(rounds["path_ranks"])
    depth = _longest(paths)
    if depth == 0:
        return pd.DataFrame(columns=["method", "depth", "rank", "count"])
    ranks = 1 + pc.max(pc.list_flatten(paths)).as_py()
    counts = np.zeros(len(methods) * depth * ranks, np.int64)
    for rows, position, rank in _blocks(paths):
        counts += np.bincount((codes[rows] * depth + position) * ranks + rank, minlength=counts.size)
    cells = np.flatnonzero(counts)
    method, place, rank = np.unravel_index(cells, (len(methods), depth, ranks))
    names = np.asarray(methods, dtype=object)[method]
    return pd.DataFrame({"method": names, "depth": place + 1, "rank": rank, "count": counts[cells]})


def summarise(
    turns: pd.DataFrame, rounds: pd.DataFrame, baseline: str = BASELINE, methods: Sequence[str] | None = None
) -> list[MethodSummary]:
    """One `MethodSummary` per method, in the order of `methods` (default: baseline first, then as met).

    Raises UsageError when the baseline has no row: a speedup has no meaning without it.
    """
    present = [str(name) for name in turns["method"].unique()]
    if baseline not in present:
        raise UsageError(f"no rows of baseline {baseline!r} in turns (found {present}): put it into the line-up")
    order = list(methods or dict.fromkeys([baseline, *present]))
    ok, ok_rounds = measured(turns, rounds)
    values = _values_by_method(ok, ok_rounds, baseline).reindex(order)
    counts = values[["prompts", "turns", "equal", "compared"]].fillna(0).astype(int)
    status = turns.groupby(["method", "status"], observed=True).size().unstack(fill_value=0)
    status = status.reindex(index=order, columns=["failed", "skipped"], fill_value=0)
    paired, ratios = speedups_over(ok, baseline, order)
    summaries = []
    for name, ratio in ratios.items():
        summaries.append(
            MethodSummary(
                method=name,
                prompts=int(counts.at[name, "prompts"]),
                turns=int(counts.at[name, "turns"]),
                failed=int(status.at[name, "failed"]),
                skipped=int(status.at[name, "skipped"]),
                speedup=ratio.value,
                speedup_ci95=(ratio.low, ratio.high),
                mean_of_ratios=mean_of_ratios(paired[name]),
                eagle_speedup=eagle_speedup(paired[name]),
                equal_prompts=int(counts.at[name, "equal"]),
                compared_prompts=int(counts.at[name, "compared"]),
                **{field: float(values.at[name, field]) for field in _FLOAT_FIELDS},
            )
        )
    return summaries


_FLOAT_FIELDS = (
    *("mat", "prompt_mean_mat", "eta", "gamma", "tokens_per_second", "predicted_speedup"),
    *("draft_share", "verify_share", "overhead_share", "round_ms", "ttft_ms", "worst_margin"),
)


def _values_by_method(turns: pd.DataFrame, rounds: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Every metric that needs no pairing, one row per method, one column per field of `MethodSummary`."""
    by_method = turns.groupby("method", observed=True)
    sums = _sums(turns, "decode_ms", "rounds")
    accepted, passes, cost = mat(rounds), eta(rounds), gamma(turns, baseline)
    columns = {
        "prompts": by_method["prompt_id"].nunique(),
        "turns": by_method.size(),
        "mat": accepted,
        "prompt_mean_mat": prompt_mean_mat(turns),
        "eta": passes,
        "gamma": cost,
        "tokens_per_second": tokens_per_second(turns),
        "predicted_speedup": predicted_speedup(accepted, passes, cost),
        "round_ms": sums["decode_ms"] / sums["rounds"],
        "ttft_ms": by_method["prefill_ms"].median(),
    }
    shares = time_shares(turns).set_axis(["draft_share", "verify_share", "overhead_share"], axis=1)
    parts = [*(series.rename(name) for name, series in columns.items()), shares, equality(turns)]
    return pd.concat([part.set_axis(part.index.astype(str)) for part in parts], axis=1)


def _sums(turns: pd.DataFrame, *columns: str) -> pd.DataFrame:
    return turns.groupby("method", observed=True)[list(columns)].sum()


def _speeds(pairs: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Tokens per ms of each prompt, reference and method, for prompts where both emitted something."""
    pairs = pairs[(pairs["reference_tokens"] > 0) & (pairs["method_tokens"] > 0)]
    return pairs["reference_tokens"] / pairs["reference_ms"], pairs["method_tokens"] / pairs["method_ms"]


def _list_array(lists: pd.Series) -> pa.ChunkedArray:
    """A list column (Arrow-backed or of Python lists) as Arrow lists of integers."""
    arrow = pa.array(lists, from_pandas=True)
    chunked = arrow if isinstance(arrow, pa.ChunkedArray) else pa.chunked_array([arrow])
    return chunked.cast(pa.list_(pa.int32()))


def _longest(lists: pa.ChunkedArray) -> int:
    return pc.max(pc.list_value_length(lists)).as_py() or 0


def _blocks(lists: pa.ChunkedArray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Elements of a list column, in blocks: (row number, position in its list, value), each [elements]."""
    for start in range(0, len(lists), _BLOCK_ROWS):
        block = lists.slice(start, _BLOCK_ROWS)
        lengths = pc.list_value_length(block).fill_null(0).to_numpy().astype(np.int64)
        values = pc.list_flatten(block).to_numpy().astype(np.int64)
        first = np.cumsum(lengths) - lengths
        position = np.arange(len(values)) - np.repeat(first, lengths)
        yield start + np.repeat(np.arange(len(lengths)), lengths), position, values
