"""Every metric against hand-made records of two prompts, worked out on paper in the comments."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_bench import metrics
from talon_bench.errors import UsageError


def rounds_of(prompt: str, method: str, *rows: tuple) -> list[dict]:
    """Rows (widths, path_ranks, emitted, draft_passes, draft_ms, verify_ms, other_ms)."""
    names = ("widths", "path_ranks", "emitted", "draft_passes", "draft_ms", "verify_ms", "other_ms")
    return [
        {"prompt_id": prompt, "turn": 0, "method": method, "round": place, "accepted": len(row[1])}
        | dict(zip(names, row, strict=True))
        for place, row in enumerate(rows)
    ]


def turns_of(rounds: pd.DataFrame, **columns: object) -> pd.DataFrame:
    """The turns that `rounds` add up to, all measured and equal to AR unless `columns` say otherwise."""
    sums = rounds.groupby(["prompt_id", "turn", "method"], sort=False).agg(
        new_tokens=("emitted", lambda emitted: emitted.sum() + 1),
        rounds=("emitted", "size"),
        **{name: (name, "sum") for name in ("draft_passes", "draft_ms", "verify_ms", "other_ms")},
    )
    frame = sums.reset_index()
    frame["decode_ms"] = frame[["draft_ms", "verify_ms", "other_ms"]].sum(axis=1)
    return frame.assign(**{"prefill_ms": 40.0, "equals_ar": True, "margin": None, "status": "ok"} | columns)


AR_10 = ([], [], 1, 0, 0.0, 10.0, 0.0)
AR_12 = ([], [], 1, 0, 0.0, 12.0, 0.0)


@pytest.fixture
def rounds() -> pd.DataFrame:
    """p0 emits 6 tokens after the prefill, p1 4; TALON's second round on p0 accepts 2, cut to 2 emitted."""
    return pd.DataFrame(
        [
            *rounds_of("p0", "ar", *[AR_10] * 6),
            *rounds_of("p1", "ar", *[AR_12] * 4),
            *rounds_of(
                "p0",
                "talon",
                ([3, 2, 1], [0, 1, 0], 4, 3, 6.0, 12.0, 1.0),
                ([3, 2], [2, 0], 2, 5, 10.0, 12.0, 1.0),
            ),
            *rounds_of(
                "p1",
                "talon",
                ([3], [], 1, 4, 8.0, 12.0, 1.0),
                ([3, 1], [], 1, 4, 8.0, 12.0, 1.0),
                ([3, 1], [0], 2, 4, 8.0, 12.0, 1.0),
            ),
        ]
    )


@pytest.fixture
def turns(rounds: pd.DataFrame) -> pd.DataFrame:
    return turns_of(rounds)


def test_mat_counts_emitted_tokens_per_verification(rounds: pd.DataFrame) -> None:
    """TALON: 4 + 2 + 1 + 1 + 2 = 10 tokens in 5 verifications; the cut round counts 2, not 3."""
    assert metrics.mat(rounds).to_dict() == {"ar": 1.0, "talon": 2.0}


def test_mat_is_pooled_and_its_prompt_mean_is_not(turns: pd.DataFrame) -> None:
    """Per prompt 6 / 2 and 4 / 3."""
    assert metrics.prompt_mean_mat(turns)["talon"] == pytest.approx((3 + 4 / 3) / 2)


def test_eta_gamma_and_the_cost_model(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    """20 passes in 5 rounds; 40 ms / 20 passes against AR's 108 ms / 10 rounds."""
    eta, gamma = metrics.eta(rounds), metrics.gamma(turns)
    assert eta.to_dict() == {"ar": 0.0, "talon": 4.0}
    assert gamma["talon"] == pytest.approx(2 / 10.8)
    assert math.isnan(gamma["ar"])
    predicted = metrics.predicted_speedup(metrics.mat(rounds), eta, gamma)
    assert predicted["talon"] == pytest.approx(2 / (1 + 4 * 2 / 10.8))
    assert predicted["ar"] == 1.0


def test_time_shares_and_tokens_per_second(turns: pd.DataFrame) -> None:
    """TALON decodes 105 ms: 40 draft, 60 verify, 5 other; 10 tokens."""
    assert metrics.time_shares(turns).loc["talon"].to_dict() == pytest.approx(
        {"draft": 40 / 105, "verify": 60 / 105, "other": 5 / 105}
    )
    assert metrics.tokens_per_second(turns)["talon"] == pytest.approx(10 / 0.105)


def test_three_kinds_of_speedup(turns: pd.DataFrame) -> None:
    """AR takes 60 and 48 ms, TALON 42 and 63 ms, for 6 and 4 tokens."""
    pairs = metrics.paired_prompts(turns, "ar", "talon")
    assert pairs.loc["p1"].to_dict() == {
        "reference_ms": 48.0,
        "reference_tokens": 4,
        "method_ms": 63.0,
        "method_tokens": 4,
    }
    assert metrics.speedup(pairs).value == pytest.approx(108 / 105)
    assert metrics.mean_of_ratios(pairs) == pytest.approx((60 / 42 + 48 / 63) / 2)
    assert metrics.eagle_speedup(pairs) == pytest.approx((6 / 42 + 4 / 63) / (6 / 60 + 4 / 48))


def test_speedup_compares_time_per_token_when_lengths_differ() -> None:
    """Half the tokens in half the time is no speedup."""
    rounds = pd.DataFrame(
        [
            *rounds_of("p0", "ar", *[AR_10] * 4),
            *rounds_of("p0", "talon", ([1], [0], 2, 1, 5.0, 14.0, 1.0)),
        ]
    )
    assert metrics.speedup(metrics.paired_prompts(turns_of(rounds), "ar", "talon")).value == 1.0


def test_speedup_pools_the_turns_of_a_prompt_and_skips_unpaired_ones(turns: pd.DataFrame) -> None:
    second = turns[turns["prompt_id"] == "p0"].assign(turn=1)
    only_ar = second[second["method"] == "ar"].assign(turn=2)
    pairs = metrics.paired_prompts(pd.concat([turns, second, only_ar]), "ar", "talon")
    assert pairs["reference_ms"].to_dict() == {"p0": 120.0, "p1": 48.0}
    assert pairs["method_ms"].to_dict() == {"p0": 84.0, "p1": 63.0}


def test_paired_cells_count_nothing_where_a_method_has_no_turn(turns: pd.DataFrame) -> None:
    """All methods stand on AR's prompts; without its turn on p0, TALON's pair there is empty on both sides."""
    cells = metrics.paired_cells(turns, "ar", ["ar", "talon"])
    assert cells.tolist() == [
        [[60.0, 6, 60.0, 6], [60.0, 6, 42.0, 6]],
        [[48.0, 4, 48.0, 4], [48.0, 4, 63.0, 4]],
    ]
    without = turns[(turns["method"] == "ar") | (turns["prompt_id"] == "p1")]
    assert metrics.paired_cells(without, "ar", ["talon"]).tolist() == [[[0, 0, 0, 0]], [[48.0, 4, 63.0, 4]]]


def test_acceptance_by_rank(rounds: pd.DataFrame) -> None:
    counts = metrics.accepted_by_rank(rounds).set_index(["method", "depth", "rank"])["count"].to_dict()
    assert counts == {
        ("talon", 1, 0): 2,
        ("talon", 1, 2): 1,
        ("talon", 2, 0): 1,
        ("talon", 2, 1): 1,
        ("talon", 3, 0): 1,
    }


def test_ranks_are_the_same_in_blocks_and_from_arrow(rounds: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = metrics.accepted_by_rank(rounds)
    monkeypatch.setattr(metrics, "_BLOCK_ROWS", 4)
    lists = pd.ArrowDtype(pa.list_(pa.int16()))
    arrow = rounds.astype({"widths": lists, "path_ranks": lists, "method": "category", "emitted": "int16"})
    for frame in (rounds, arrow):
        pd.testing.assert_frame_equal(metrics.accepted_by_rank(frame), expected)


def test_a_run_of_ar_alone_has_no_accepted_places(rounds: pd.DataFrame) -> None:
    assert metrics.accepted_by_rank(rounds[rounds["method"] == "ar"]).empty


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=30))
def test_each_accepted_node_has_a_rank(paths: list[list[int]]) -> None:
    counts = metrics.accepted_by_rank(pd.DataFrame({"method": "talon", "path_ranks": paths}))
    found = counts.set_index(["depth", "rank"])["count"].to_dict()
    assert found == dict(Counter(place for path in paths for place in enumerate(path, start=1)))


def test_measured_drops_failed_turns_with_their_rounds(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    bad = (turns["prompt_id"] == "p1") & (turns["method"] == "talon")
    turns.loc[bad, "status"] = "failed"
    for category in (False, True):
        kind = {"method": "category", "prompt_id": "category"} if category else {}
        kept, kept_rounds = metrics.measured(turns.astype(kind), rounds.astype(kind))
        assert len(kept) == 3
        assert kept_rounds.groupby(["prompt_id", "method"], observed=True).size().to_dict() == {
            ("p0", "ar"): 6,
            ("p1", "ar"): 4,
            ("p0", "talon"): 2,
        }


def test_int16_columns_do_not_overflow() -> None:
    frame = pd.DataFrame({"method": "talon", "emitted": np.full(40_000, 3, np.int16)})
    frame["draft_passes"] = np.int16(9)
    assert metrics.mat(frame)["talon"] == 3.0
    assert metrics.eta(frame)["talon"] == 9.0


def test_equality_counts_prompts_and_keeps_the_worst_margin(turns: pd.DataFrame) -> None:
    """A prompt is equal only if all of its turns are."""
    second = turns.assign(turn=1)
    frame = pd.concat([turns, second], ignore_index=True)
    differs = (frame["method"] == "talon") & (frame["prompt_id"] == "p1")
    frame["equals_ar"] = (~differs).astype(object)
    frame.loc[differs, "margin"] = [0.02, 0.05]
    table = metrics.equality(frame)
    assert table.loc["talon"].to_dict() == {"equal": 1, "compared": 2, "worst_margin": 0.05}
    assert table.loc["ar", ["equal", "compared"]].to_list() == [2, 2]
    unknown = metrics.equality(frame.assign(equals_ar=None))
    assert unknown.empty


def test_summary_holds_every_number(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    skipped = turns.iloc[[2]].assign(
        prompt_id="p2", status="skipped", new_tokens=0, rounds=0, decode_ms=np.nan, equals_ar=None
    )
    failed = turns.iloc[[2]].assign(prompt_id="p3", status="failed", new_tokens=0, rounds=0, decode_ms=np.nan)
    ar, talon = metrics.summarise(pd.concat([turns, skipped, failed]), rounds)
    assert (ar.method, ar.speedup, ar.speedup_ci95, ar.mat) == ("ar", 1.0, (1.0, 1.0), 1.0)
    assert (talon.prompts, talon.turns, talon.failed, talon.skipped) == (2, 2, 1, 1)
    assert (talon.mat, talon.eta) == (2.0, 4.0)
    assert talon.prompt_mean_mat == pytest.approx(13 / 6)
    assert talon.gamma == pytest.approx(2 / 10.8)
    assert talon.tokens_per_second == pytest.approx(10 / 0.105)
    assert talon.speedup == pytest.approx(108 / 105)
    assert talon.speedup_ci95 == pytest.approx((48 / 63, 60 / 42))
    assert talon.mean_of_ratios == pytest.approx((60 / 42 + 48 / 63) / 2)
    assert talon.eagle_speedup == pytest.approx((6 / 42 + 4 / 63) / (6 / 60 + 4 / 48))
    assert talon.predicted_speedup == pytest.approx(2 / (1 + 8 / 10.8))
    assert (talon.draft_share, talon.verify_share) == pytest.approx((40 / 105, 60 / 105))
    assert talon.overhead_share == pytest.approx(5 / 105)
    assert talon.round_ms == 21.0
    assert talon.ttft_ms == 40.0
    assert (talon.equal_prompts, talon.compared_prompts, talon.lossless) == (2, 2, True)
    assert math.isnan(talon.worst_margin)


def test_summary_does_not_depend_on_row_order_or_index(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    shuffled = metrics.summarise(turns.sample(frac=1, random_state=3), rounds.sample(frac=1, random_state=4))
    for one, other in zip(metrics.summarise(turns, rounds), shuffled, strict=True):
        for field, value in vars(one).items():
            assert getattr(other, field) == pytest.approx(value, nan_ok=True), field


def test_summary_of_a_method_that_always_failed_is_a_row_of_nan(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    turns.loc[turns["method"] == "talon", "status"] = "failed"
    talon = metrics.summarise(turns, rounds)[1]
    assert (talon.prompts, talon.turns, talon.failed) == (0, 0, 2)
    assert math.isnan(talon.mat)
    assert math.isnan(talon.speedup)
    assert talon.lossless is None


def test_summary_of_one_prompt_has_no_interval(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    one = turns["prompt_id"] == "p0"
    talon = metrics.summarise(turns[one], rounds[rounds["prompt_id"] == "p0"])[1]
    assert talon.speedup == pytest.approx(60 / 42)
    assert all(math.isnan(end) for end in talon.speedup_ci95)


def test_order_is_the_line_up_s(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    first_talon = turns.iloc[::-1]
    assert [row.method for row in metrics.summarise(first_talon, rounds)] == ["ar", "talon"]
    named = metrics.summarise(turns, rounds, methods=["talon", "ar"])
    assert [row.method for row in named] == ["talon", "ar"]


def test_a_missing_baseline_is_refused(turns: pd.DataFrame, rounds: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="no rows of baseline 'ar'"):
        metrics.summarise(turns[turns["method"] == "talon"], rounds)
