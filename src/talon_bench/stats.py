"""Uncertainty of a measured ratio: the paired bootstrap over prompts.

A speedup is a ratio of two rates, `(sum a_ms / sum a_tokens) / (sum b_ms / sum b_tokens)`, where row i of
every array belongs to the same prompt. Prompts are the independent unit, so whole prompts are drawn with
replacement and both methods are read on the same draw: what makes a prompt slow for both cancels. Intervals
are percentile intervals; the seed is fixed, so the same records always print the same interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 0

_CHUNK_CELLS = 4_000_000  # resamples x prompts held at a time: 32 MB of weights, whatever the number of prompts


@dataclass(frozen=True)
class Estimate:
    """A point estimate and its 95 % interval, (nan, nan) where a single prompt leaves no spread."""

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Whether the interval is known and does not contain `value`."""
        return self.high < value or self.low > value


def resampled_sums(values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """Column sums of `values` [prompts, columns] under the bootstrap: an array [resamples, columns].

    Every column sees the same draws, which is what makes a ratio of two columns a paired statistic.
    """
    values = np.asarray(values, dtype=np.float64)
    prompts, columns = values.shape
    rng = np.random.default_rng(seed)
    sums = np.empty((resamples, columns))
    chunk = max(1, _CHUNK_CELLS // prompts)
    for start in range(0, resamples, chunk):
        draws = min(chunk, resamples - start)
        picks = rng.integers(0, prompts, size=(draws, prompts)) + np.arange(draws)[:, None] * prompts
        weights = np.bincount(picks.ravel(), minlength=draws * prompts).reshape(draws, prompts)
        sums[start : start + draws] = weights.astype(np.float64) @ values
    return sums


def ratio_of_sums(
    a: ArrayLike,
    b: ArrayLike,
    *,
    a_units: ArrayLike | None = None,
    b_units: ArrayLike | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """`(sum a / sum a_units) / (sum b / sum b_units)` with its paired bootstrap interval.

    All arrays are [prompts], row i of each being the same prompt; `a` and `b` are milliseconds, the units
    emitted tokens. Without units it is the plain ratio `sum a / sum b`. The ratio is nan for no prompts or an
    empty denominator.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    columns = np.column_stack(
        [
            a,
            np.ones_like(a) if a_units is None else a_units,
            b,
            np.ones_like(b) if b_units is None else b_units,
        ]
    )
    if len(columns) == 0:
        return Estimate(math.nan, math.nan, math.nan)
    value = float(_rate_ratio(columns.sum(axis=0, keepdims=True))[0])
    if len(columns) == 1 or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    ratios = _rate_ratio(resampled_sums(columns, resamples=resamples, seed=seed))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(ratios, [tail, 100 - tail])
    return Estimate(value, float(low), float(high))


def separated(
    a: ArrayLike,
    b: ArrayLike,
    *,
    a_units: ArrayLike | None = None,
    b_units: ArrayLike | None = None,
    seed: int = SEED,
) -> bool:
    """Whether two methods on the same prompts differ: the interval of their ratio excludes 1."""
    return ratio_of_sums(a, b, a_units=a_units, b_units=b_units, seed=seed).excludes(1.0)


def noise_floor(
    a: ArrayLike,
    b: ArrayLike,
    *,
    a_units: ArrayLike | None = None,
    b_units: ArrayLike | None = None,
    seed: int = SEED,
) -> Estimate:
    """|log ratio| of two measurements of one thing (AR against AR again): how far apart equals land.

    Its interval is the image of the ratio's interval, so it starts at 0 when that one contains 1.
    """
    ratio = ratio_of_sums(a, b, a_units=a_units, b_units=b_units, seed=seed)
    if math.isnan(ratio.low):
        return Estimate(abs(math.log(ratio.value)), math.nan, math.nan)
    ends = sorted(abs(math.log(end)) for end in (ratio.low, ratio.high))
    return Estimate(abs(math.log(ratio.value)), ends[0] if ratio.excludes(1.0) else 0.0, ends[1])


def _rate_ratio(sums: np.ndarray) -> np.ndarray:
    """Rows [a, a_units, b, b_units] -> ratio of the two rates; nan where a denominator is empty."""
    a, a_units, b, b_units = sums.T
    below = a_units * b
    return np.divide(a * b_units, below, out=np.full(len(sums), np.nan), where=below > 0)
