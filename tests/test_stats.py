"""The paired bootstrap: exact small cases, scipy as the reference, properties of any ratio interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_bench import stats

POSITIVE = st.floats(0.1, 1000)
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=8)


def test_two_prompts_by_hand() -> None:
    """Draws are (1, 1), (1, 3) twice and (3, 3): ratios 1, 2, 2, 3, so the tail percentiles are 1 and 3."""
    assert stats.ratio_of_sums([1, 3], [1, 1]) == stats.Estimate(2.0, 1.0, 3.0)


def test_units_turn_sums_into_rates() -> None:
    """30 ms for 3 tokens against 40 ms for 8: 10 ms against 5 ms a token."""
    estimate = stats.ratio_of_sums([10, 20], [10, 30], a_units=[1, 2], b_units=[2, 6])
    assert estimate == stats.Estimate(2.0, 2.0, 2.0)


def test_interval_agrees_with_scipy() -> None:
    rng = np.random.default_rng(5)
    b = rng.gamma(4, 25, 60)
    a = b * rng.normal(1.8, 0.3, 60)
    ours = stats.ratio_of_sums(a, b)
    theirs = scipy.stats.bootstrap(
        (a, b),
        lambda x, y, axis: x.sum(axis) / y.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=stats.RESAMPLES,
        rng=np.random.default_rng(6),
    ).confidence_interval
    assert ours.value == pytest.approx(a.sum() / b.sum())
    monte_carlo = 0.04 * (theirs.high - theirs.low)  # four standard errors of the difference of two such percentiles
    assert ours.low == pytest.approx(theirs.low, abs=monte_carlo)
    assert ours.high == pytest.approx(theirs.high, abs=monte_carlo)


def test_pairing_cancels_what_prompts_share() -> None:
    """Prompts differ tenfold in length, the ratio hardly: the paired interval is as narrow as the ratio."""
    rng = np.random.default_rng(0)
    b = np.linspace(10, 100, 40)
    estimate = stats.ratio_of_sums(2 * b * rng.uniform(0.99, 1.01, 40), b)
    assert 1.98 < estimate.low < estimate.high < 2.02


@settings(max_examples=25, deadline=None)
@given(pairs=PAIRS, scale=st.floats(0.01, 100))
def test_scaling_one_side_scales_everything(pairs: list[tuple[float, float]], scale: float) -> None:
    a, b = np.array(pairs).T
    plain, scaled = stats.ratio_of_sums(a, b), stats.ratio_of_sums(a * scale, b)
    expected = [scale * x for x in (plain.value, plain.low, plain.high)]
    assert [scaled.value, scaled.low, scaled.high] == pytest.approx(expected, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(pairs=PAIRS)
def test_interval_contains_the_estimate_and_inverts(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    there, back = stats.ratio_of_sums(a, b), stats.ratio_of_sums(b, a)
    slack = 1 + 1e-12
    assert there.low <= there.value * slack
    assert there.value <= there.high * slack
    assert back.value == pytest.approx(1 / there.value)
    assert there.excludes(1.0) == back.excludes(1.0)


def test_same_records_give_the_same_interval() -> None:
    a, b = np.random.default_rng(1).uniform(1, 2, (2, 30))
    assert stats.ratio_of_sums(a, b) == stats.ratio_of_sums(a, b)
    assert stats.ratio_of_sums(a, b) != stats.ratio_of_sums(a, b, seed=1)


def test_one_prompt_has_no_interval_and_excludes_nothing() -> None:
    estimate = stats.ratio_of_sums([6.0], [2.0])
    assert estimate.value == 3.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    assert not estimate.excludes(1.0)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0, 2.0], [0.0, 0.0])])
def test_nothing_measured_is_nan(a: list[float], b: list[float]) -> None:
    assert math.isnan(stats.ratio_of_sums(a, b).value)


def test_resampled_sums_keep_n_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw takes n prompts, all columns see the same ones, also when a chunk is a single draw."""
    monkeypatch.setattr(stats, "_CHUNK_CELLS", 7)
    values = np.column_stack([np.ones(5), np.arange(5.0), 10 * np.arange(5.0)])
    sums = stats.resampled_sums(values, resamples=2000)
    assert sums.shape == (2000, 3)
    assert (sums[:, 0] == 5).all()
    assert (sums[:, 2] == 10 * sums[:, 1]).all()
    assert sums[:, 1].mean() == pytest.approx(10, abs=0.4)
    assert sums[:, 1].var() == pytest.approx(5 * 2, rel=0.15)


def test_an_interval_excludes_1_where_the_difference_is_beyond_the_noise() -> None:
    rng = np.random.default_rng(2)
    b = rng.uniform(50, 100, 40)
    noise = rng.normal(1, 0.05, 40)
    assert stats.ratio_of_sums(1.2 * b * noise, b).excludes(1.0)
    assert not stats.ratio_of_sums(b * np.tile([0.9, 1.1], 20), b).excludes(1.0)


def test_noise_floor_is_zero_for_equal_and_the_log_for_constant_ratios() -> None:
    b = np.array([3.0, 4.0, 5.0])
    assert stats.noise_floor(b, b) == stats.Estimate(0.0, 0.0, 0.0)
    for factor in (2.0, 0.5):
        floor = stats.noise_floor(factor * b, b)
        assert [floor.value, floor.low, floor.high] == pytest.approx([math.log(2)] * 3)


def test_noise_floor_starts_at_zero_when_the_interval_contains_1() -> None:
    """Ratios 0.8 and 1.1 of two equal prompts: the interval is [0.8, 1.1], its furthest end from 1 is 0.8."""
    floor = stats.noise_floor([0.8, 1.1], [1.0, 1.0])
    assert floor.low == 0.0
    assert floor.value == pytest.approx(-math.log(0.95))
    assert floor.high == pytest.approx(-math.log(0.8))
    assert math.isnan(stats.noise_floor([2.0], [1.0]).high)


def columns(rng: np.random.Generator, prompts: int) -> np.ndarray:
    return stats.columns_of(*rng.uniform(1, 2, (2, prompts)), rng.integers(1, 9, prompts), rng.integers(1, 9, prompts))


def test_many_ratios_at_once_are_those_one_by_one() -> None:
    """Whatever sizes come together: 0 and 1 prompts among them, and two of one size."""
    rng = np.random.default_rng(4)
    pairs = [columns(rng, prompts) for prompts in (7, 0, 1, 7, 3)]
    together = stats.ratios_of_sums(pairs)
    alone = [stats.ratio_of_sums(a, b, a_units=m, b_units=n) for a, m, b, n in (pair.T for pair in pairs)]
    assert str(together) == str(alone)
    assert stats.ratios_of_sums([]) == []


def test_mean_ratios_share_draws_between_methods_but_not_between_sets() -> None:
    """Two equal methods have equal draws; two equal data sets have not."""
    cells = np.stack([columns(np.random.default_rng(6), 9)] * 2, axis=1)
    values, draws = stats.mean_ratios([cells])
    assert values.tolist() == pytest.approx(
        [stats.ratio_of_sums(*cells[:, 0].T[[0, 2]], a_units=cells[:, 0, 1], b_units=cells[:, 0, 3]).value] * 2
    )
    assert (draws[:, 0] == draws[:, 1]).all()
    twice, both = stats.mean_ratios([cells, cells])
    assert twice.tolist() == pytest.approx(values.tolist())
    assert both[:, 0].std() == pytest.approx(draws[:, 0].std() / math.sqrt(2), rel=0.05)


def test_the_mean_of_a_baseline_over_six_sets_is_exactly_one() -> None:
    sets = [np.stack([columns(np.random.default_rng(size), size)[:, [0, 1, 0, 1]]], axis=1) for size in range(2, 8)]
    values, draws = stats.mean_ratios(sets)
    assert (values == 1).all()
    assert (draws == 1).all()


def test_mean_ratios_have_no_draws_where_a_set_has_one_prompt() -> None:
    rng = np.random.default_rng(7)
    sets = [np.stack([columns(rng, prompts)], axis=1) for prompts in (1, 5)]
    values, draws = stats.mean_ratios(sets)
    assert draws is None
    assert math.isnan(stats.interval(float(values[0]), draws).low)
