"""Uncertainty of a measured ratio: the paired bootstrap over prompts.

A speedup is a ratio of two rates, `(sum a_ms / sum a_tokens) / (sum b_ms / sum b_tokens)`, where row i of
every array belongs to the same prompt. Prompts are the independent unit, so whole prompts are drawn with
replacement and both methods are read on the same draw: what makes a prompt slow for both cancels. Intervals
are percentile intervals; the seed is fixed, so the same records always print the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def resampled_sums(values: ArrayLike, *, resamples: int = RESAMPLES, seed: int | Sequence[int] = SEED) -> np.ndarray:
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
    (estimate,) = ratios_of_sums([columns_of(a, b, a_units, b_units)], resamples=resamples, seed=seed)
    return estimate


def columns_of(a: ArrayLike, b: ArrayLike, a_units: ArrayLike | None, b_units: ArrayLike | None) -> np.ndarray:
    """The four arrays as columns [a, a_units, b, b_units] of one array [prompts, 4]; units left out are 1."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    ones = np.ones_like(a)
    return np.column_stack([a, ones if a_units is None else a_units, b, ones if b_units is None else b_units])


def ratios_of_sums(pairs: Sequence[np.ndarray], *, resamples: int = RESAMPLES, seed: int = SEED) -> list[Estimate]:
    """`ratio_of_sums` of many pairs at once, each as `columns_of` gives it.

    Pairs over equally many prompts meet the same draws whether they come together or one by one; together,
    the draws are made once.
    """
    sizes: dict[int, list[int]] = {}
    for place, columns in enumerate(pairs):
        sizes.setdefault(len(columns), []).append(place)
    estimates = [Estimate(math.nan, math.nan, math.nan)] * len(pairs)
    for size, places in sizes.items():
        if size == 0:
            continue
        stacked = np.concatenate([pairs[place] for place in places], axis=1)
        values = _rate_ratio(stacked.sum(axis=0).reshape(-1, 4))
        draws = None
        if size > 1:
            draws = _rate_ratio(resampled_sums(stacked, resamples=resamples, seed=seed).reshape(-1, 4))
            draws = draws.reshape(-1, len(places))
        for column, (place, value) in enumerate(zip(places, values, strict=True)):
            estimates[place] = interval(float(value), None if draws is None else draws[:, column])
    return estimates


def interval(value: float, draws: np.ndarray | None) -> Estimate:
    """`value` with the percentile interval of its bootstrap `draws` [resamples]; None: no spread is known."""
    if draws is None or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(draws, [tail, 100 - tail])
    return Estimate(value, float(low), float(high))


def median(values: Sequence[float]) -> Estimate:
    """The median with its 95 % bootstrap interval (percentile)."""
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < 2:
        return interval(float(sample[0]) if len(sample) else float("nan"), None)
    picks = np.random.default_rng(SEED).integers(0, len(sample), size=(RESAMPLES, len(sample)))
    return interval(float(np.median(sample)), np.median(sample[picks], axis=1))


def mean_ratios(
    sets: Sequence[np.ndarray], *, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[np.ndarray, np.ndarray | None]:
    """The unweighted mean over data sets of each method's ratio: values [methods] and draws [resamples, methods].

    A data set is an array [prompts, methods, 4] of `columns_of`. Prompts are drawn within their data set and
    independently of the other sets; inside one, all methods meet the same draws, so that the difference of
    two columns of the draws is a paired statistic. No draws (None) where a data set has a single prompt.
    """
    values = np.mean([_rate_ratio(cells.sum(axis=0)) for cells in sets], axis=0)
    if min(len(cells) for cells in sets) < 2:
        return values, None
    draws = np.zeros((resamples, len(values)))
    for place, cells in enumerate(sets):
        sums = resampled_sums(cells.reshape(len(cells), -1), resamples=resamples, seed=(seed, place))
        draws += _rate_ratio(sums.reshape(-1, 4)).reshape(draws.shape)
    return values, draws / len(sets)


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
