"""Rates by place, tree shapes and sums per prompt against values worked out by hand; intervals against `ratio_of_sums`."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from figure_runs import DEEP, HALF, MISS, PLAIN, make_run, sweep_run, two_prompts
from talon_bench.report import layers
from talon_bench.report.by_prompt import length_spread, pooled, prompt_sums
from talon_bench.report.funnel import depth_rates, place_rates
from talon_bench.report.sweeps import Variant, families, swept_field, variants
from talon_bench.stats import Estimate, ratio_of_sums

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=12)


def of(frame: pd.DataFrame, method: str) -> pd.DataFrame:
    return frame[frame["method"] == method]


def test_depth_rates() -> None:
    """EAGLE-3: 4 verifications, 3 paths reach depth 1 (deep, half, half), 1 depth 2, 1 depth 3."""
    rates = depth_rates(two_prompts().rounds)
    assert set(rates["method"]) == {"eagle3", "talon"}
    eagle = of(rates, "eagle3")
    assert eagle["before"].tolist() == [4, 3, 1]
    assert eagle["reached"].tolist() == [3, 1, 1]
    assert eagle["joint"].tolist() == [0.75, 0.25, 0.25]
    assert eagle["conditional"].tolist() == [0.75, pytest.approx(1 / 3), 1.0]
    assert of(rates, "talon")["joint"].tolist() == [pytest.approx(2 / 3), pytest.approx(1 / 3), pytest.approx(1 / 3)]
    # Prompt a: 1 of 2 paths reaches depth 1, prompt b 2 of 2.
    estimate = ratio_of_sums([1, 2], [2, 2])
    assert (eagle["joint_low"].iloc[0], eagle["joint_high"].iloc[0]) == (estimate.low, estimate.high) == (0.5, 1.0)
    # Given depth 1: 1 of 1 on a goes on, 0 of 2 on b.
    estimate = ratio_of_sums([1, 0], [1, 2])
    assert (eagle["conditional_low"].iloc[1], eagle["conditional_high"].iloc[1]) == (estimate.low, estimate.high)


def test_rates_where_nothing_is_deep_and_one_prompt_has_no_interval() -> None:
    run = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": [MISS, MISS]}})
    rates = depth_rates(run.rounds)
    assert rates["joint"].tolist() == [0.0, 0.0]
    assert rates["conditional"].tolist() == [0.0, pytest.approx(math.nan, nan_ok=True)]
    assert rates["joint_low"].isna().all()
    assert depth_rates(run.rounds[run.rounds["method"] == "ar"]).empty
    assert place_rates(run.rounds[run.rounds["method"] == "ar"]).empty


def test_place_rates() -> None:
    """EAGLE-3's trees are 3, 2 and once 1 wide; the deep path takes ranks 0, 1, 0, both half paths rank 2."""
    places = of(place_rates(two_prompts().rounds), "eagle3")
    cells = {(row.depth, row.rank): (row.verified, row.accepted, row.share) for row in places.itertuples()}
    assert cells == {
        (1, 0): (4, 1, 0.25),
        (1, 1): (4, 0, 0.0),
        (1, 2): (4, 2, 0.5),
        (2, 0): (4, 0, 0.0),
        (2, 1): (4, 1, 0.25),
        (3, 0): (1, 1, 0.25),
    }
    assert set(places["rounds"]) == {4}


@settings(max_examples=25)
@given(SHAPES)
def test_places_of_any_trees_add_up(shapes: list[list[int]]) -> None:
    """A layer's verified places are its nodes, its shares the joint rate, and its trees those that are as deep."""
    rounds = [(widths, [width - 1 for width in widths[: len(widths) // 2 + 1]]) for widths in shapes]
    run = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": rounds}})
    places, widths, rates = place_rates(run.rounds), layers.layer_widths(run.rounds), depth_rates(run.rounds)
    for depth in range(1, max(map(len, shapes)) + 1):
        here = [shape[depth - 1] for shape in shapes if len(shape) >= depth]
        mine = places[places["depth"] == depth]
        assert mine["verified"].sum() == sum(here)
        assert mine["share"].sum() == pytest.approx(rates.loc[rates["depth"] == depth, "joint"].item())
        row = widths[widths["depth"] == depth].iloc[0]
        assert (row["trees"], row["mean"]) == (len(here), pytest.approx(np.mean(here)))
        ends = np.quantile(here, [0.1, 0.9], method="inverted_cdf")
        assert (row["low"], row["high"]) == tuple(ends)


def test_blocks_join_to_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = two_prompts().rounds
    whole = layers.layer_counts(rounds)
    monkeypatch.setattr(layers, "_BLOCK_ROWS", 3)
    pd.testing.assert_frame_equal(layers.layer_counts(rounds), whole)
    # Lists of Python, and null instead of an empty list, read the same.
    python = rounds.assign(widths=[list(widths) or None for widths in rounds["widths"]])
    pd.testing.assert_frame_equal(layers.layer_counts(python), whole)


def test_tree_depths() -> None:
    """TALON: a 3 deep tree on a; two 2 deep ones on b."""
    depths = of(layers.tree_depths(two_prompts().rounds), "talon")
    assert depths["depth"].tolist() == [1, 2, 3]
    assert depths["trees"].tolist() == [0, 2, 1]
    assert depths["share"].tolist() == [0, pytest.approx(2 / 3), pytest.approx(1 / 3)]
    estimate = ratio_of_sums([1, 0], [1, 2])
    assert depths.iloc[2][["low", "high"]].tolist() == [estimate.low, estimate.high]
    undrafted = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": [PLAIN, DEEP]}}).rounds
    shares = layers.tree_depths(undrafted).set_index("depth")["share"]
    assert shares.to_dict() == {0: 0.5, 1: 0, 2: 0, 3: 0.5}


def test_prompt_sums_and_pooled_ratios() -> None:
    sums = prompt_sums(two_prompts().turns, two_prompts().rounds)
    own = sums.loc["talon"]
    assert own.loc["a"].to_dict() == {
        "rounds": 1,
        "emitted": 4,
        "draft_passes": 3,
        "depth": 3,
        "decode_ms": 17.0,
        "category": "math",
        "mat": 4.0,
    }
    assert own.loc["b", ["rounds", "emitted", "draft_passes", "mat"]].tolist() == [2, 3, 4, 1.5]
    assert pooled(own, "emitted") == ratio_of_sums([4, 3], [1, 2])
    assert pooled(own, "emitted").value == pytest.approx(7 / 3)
    assert pooled(own, "emitted") != Estimate(7 / 3, math.nan, math.nan)


def test_length_spread() -> None:
    """TALON's prompts have MAT 4 and 1.5; its rounds emit 4, 2, 1. AR drafts nothing and has no row."""
    spread = length_spread(two_prompts().turns, two_prompts().rounds)
    assert spread.index.tolist() == ["eagle3", "talon"]
    row = spread.loc["talon"]
    assert row[["prompts", "prompt mean", "prompt min", "prompt max"]].tolist() == [2, 2.75, 1.5, 4.0]
    assert row["MAT"] == pytest.approx(7 / 3)
    assert row["prompt sd"] == pytest.approx(2.5 / math.sqrt(2))
    assert row["round sd"] == pytest.approx(np.std([4, 2, 1], ddof=1))
    assert row["depth"] == pytest.approx(7 / 3)


def test_variants_and_families() -> None:
    """The value is the setting's, not the text in the name; a plain line-up and a bare bracket are no sweep."""
    sweep = sweep_run("alpha", [0.1, 0.01])
    assert variants(sweep) == [
        Variant("talon[alpha=0.01]", "talon", "alpha", 0.01),
        Variant("talon[alpha=0.1]", "talon", "alpha", 0.1),
    ]
    plain = two_prompts()
    assert (swept_field(sweep), swept_field(plain)) == ("alpha", None)
    other = sweep_run("budget", [8, 16])
    assert families([sweep, other, plain]) == {None: [plain], "alpha": [sweep], "budget": [other]}
    odd = make_run({"ar": {"a": [PLAIN]}, "x[y]": {"a": [HALF]}}, {"x[y]": plain.methods["talon"]})
    assert variants(odd) == []
