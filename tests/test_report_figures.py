"""Figures draw the numbers of the records: every point, band and cell against values worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from figure_runs import DEEP, HALF, MISS, PLAIN, TALON, make_run, sweep_run, two_prompts
from run_records import AR_MS, FAST_MS, write_run
from talon_bench.errors import UsageError
from talon_bench.report import figures
from talon_bench.report.load import load_run
from talon_bench.stats import Estimate, ratio_of_sums

COST = {
    "target": "smollm2-135m",
    "dtype": "float32",
    "threads": 2,
    "context": 256,
    "rows": [
        {"tokens": 1, "ms_median": 10.0, "ms_p10": 9.0, "ms_p90": 12.0},
        {"tokens": 60, "ms_median": 25.0, "ms_p10": 24.0, "ms_p90": 27.0},
    ],
}


def lines(axis: Axes) -> list[list[tuple[float, float]]]:
    """Drawn points of each line, gaps left out."""
    return [
        [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True) if not math.isnan(y)]
        for line in axis.lines
    ]


def bars(axis: Axes) -> list[np.ndarray]:
    """Ends of each interval drawn as a line, [[x, y], [x, y]]."""
    return [part for mark in axis.collections if isinstance(mark, LineCollection) for part in mark.get_segments()]


def band(axis: Axes, place: int) -> tuple[list[float], list[float]]:
    """Lower and upper edge of the interval around line number `place`, from left to right."""
    points = axis.collections[place].get_paths()[0].vertices
    places = sorted(set(points[:, 0]))
    columns = [points[points[:, 0] == x][:, 1] for x in places]
    return [column.min() for column in columns], [column.max() for column in columns]


def ends(estimate: Estimate) -> list[float]:
    return [estimate.low, estimate.high]


def test_speedup_draws_the_table(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    plot = figures.speedup([run])
    (axis,) = plot.figure.axes
    points = [line.get_ydata()[0] for line in axis.lines if len(line.get_ydata()) == 1]
    assert points == pytest.approx([80 / 82, 1.6, 2.0, 4.0])
    drawn = [part[:, 1].tolist() for part in bars(axis)]
    assert drawn == [list(row.speedup_ci95) for name, row in run.summaries.items() if name != "ar"]
    assert drawn[0][0] < points[0] < drawn[0][1]
    assert any(np.array_equal(line.get_ydata(), [1, 1]) for line in axis.lines)
    assert "n = 6 prompts" in plot.caption


def test_funnel_draws_both_rates(tmp_path: Path) -> None:
    """Every tree has two layers and every path ends at depth 1, 48 verifications a method."""
    run = load_run(write_run(tmp_path, {"ar": AR_MS * 2, "talon": FAST_MS * 2}))
    plot = figures.funnel(run)
    assert [lines(axis) for axis in plot.figure.axes] == [[[(1, 1.0), (2, 0.0)]]] * 2
    assert "TALON_x 50% & more 48" in plot.caption
    assert "n = 12 prompts" in plot.caption


def test_funnel_draws_intervals_and_leaves_out_rare_rates() -> None:
    """EAGLE-3 reaches depth 1 in 1 of 2 rounds on a and 2 of 2 on b; no rate has 30 verifications behind it."""
    joint, conditional = figures.funnel(two_prompts()).figure.axes
    assert lines(joint)[0] == [(1, 0.75), (2, 0.25), (3, 0.25)]
    low, high = band(joint, 0)
    assert (low[0], high[0]) == (0.5, 1.0)
    assert lines(conditional) == [[], []]
    assert [text.get_text() for text in conditional.texts] == ["fewer than 30 verifications"]


def test_heatmap_draws_shares_by_layer_and_rank() -> None:
    """EAGLE-3's cells by hand (tests/test_report_funnel.py); layer 3 has one place, in one tree of four."""
    plot = figures.heatmap(two_prompts())
    eagle, talon, bar = plot.figure.axes
    assert [eagle.get_title(), talon.get_title()] == ["EAGLE-3", "TALON"]
    cells = eagle.collections[0].get_array()
    assert np.where(cells.mask, -1, cells.filled(-1)).round(6).tolist() == [
        [0.25, 0, 0.5],
        [0, 0.25, -1],
        [0.25, -1, -1],
    ]
    (width,) = eagle.lines
    assert width.get_ydata().tolist() == [0.5, 1.5, 1.5, 2.5, 2.5, 3.5]
    assert width.get_xdata().tolist() == [3.5, 3.5, 2.5, 2.5, 1.5, 1.5], "the line stands behind the last node"
    assert talon.collections[0].get_array()[0, 2] == pytest.approx(1 / 3)
    # On the drawing a place that was never accepted is white, one in no tree is grey, the first rank is leftmost.
    colours = eagle.collections[0].to_rgba(cells)
    assert colours[0, 1].tolist() == [1, 1, 1, 1]
    assert colours[1, 2, 0] == colours[1, 2, 1] == colours[1, 2, 2] < 1
    assert eagle.get_xlim()[0] < eagle.get_xlim()[1]
    assert eagle.get_ylim() == (3.5, 0.5)
    assert bar.get_ylim() == pytest.approx((0.001, 1))
    assert "EAGLE-3 4; TALON 3" in plot.caption
    assert "n = 2 prompts" in plot.caption


def test_heatmap_needs_a_tree() -> None:
    chain = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": [([1, 1], [0])]}})
    assert not figures.has_places(chain)
    with pytest.raises(UsageError, match="no draft tree"):
        figures.heatmap(chain)


def test_round_time_stacks_to_the_round(tmp_path: Path) -> None:
    """TALON's round: 10 ms, a quarter draft, 5 % other; AR's 10 ms without draft."""
    plot = figures.round_time(load_run(write_run(tmp_path, {"ar": AR_MS, "talon": FAST_MS})))
    widths = np.array([bar.get_width() for bar in plot.figure.axes[0].patches]).reshape(3, 2)
    assert widths.T.tolist() == [pytest.approx([0, 9.5, 0.5]), pytest.approx([2.5, 7.0, 0.5])]
    assert "25.0/70.0/5.0 %" in plot.caption
    assert [text.get_text().strip() for text in plot.figure.axes[0].texts] == ["10.00 ms/token", "5.00 ms/token"]


def test_round_time_draws_the_interval_of_the_round() -> None:
    """EAGLE-3: 17 and 15 ms on a, 15 and 15 on b, so 32 ms over 2 rounds and 30 over 2."""
    (axis,) = figures.round_time(two_prompts()).figure.axes
    assert bars(axis)[1][:, 0].tolist() == ends(ratio_of_sums([32, 30], [2, 2])) == [15, 16]


def test_efficiency_draws_prompts_pooled_points_and_lines() -> None:
    """TALON: 3 passes and MAT 4 on a, 2 and 1.5 on b, pooled 7/3 and 7/3; a pass takes 2 ms, AR's verification 10."""
    run = two_prompts()
    plot = figures.efficiency([run], "eagle3")
    (axis,) = plot.figure.axes
    prompts, pooled = lines(axis)[2:4]
    assert prompts == [(3, 4), (2, 1.5)]
    assert pooled == [(pytest.approx(7 / 3), pytest.approx(7 / 3))]
    across, up = bars(axis)[2:4]
    assert across[:, 0].tolist() == ends(ratio_of_sums([3, 4], [1, 2]))
    assert up[:, 1].tolist() == ends(ratio_of_sums([4, 3], [1, 2]))
    assert "gamma 0.200" in plot.caption
    oracle, *equal = lines(axis)[4:]
    assert all(x == y for x, y in oracle)
    assert equal
    assert equal[len(axis.texts)][-1][1] > axis.get_ylim()[1], "the next line leaves the panel at the top"
    for line, text in zip(equal, axis.texts, strict=False):
        speed = float(text.get_text().removesuffix(" x"))
        assert [y for _, y in line] == pytest.approx([speed * (1 + 0.2 * x) for x, _ in line])
        assert line[0] == (0, speed)
        assert text.get_position()[1] * axis.get_ylim()[1] == pytest.approx(line[-1][1]), "written at the line's end"
    # TALON's prediction is 7/3 / (1 + 0.2 * 7/3); AR takes 11 ms a token, TALON 47 ms for 7.
    assert f"TALON {7 / 3 / (1 + 0.2 * 7 / 3):.2f} ({11 / (47 / 7):.2f})" in plot.caption


def test_efficiency_has_a_figure_for_each_head() -> None:
    other = TALON | {"head": "eagle2", "label": "TALON on EAGLE-2"}
    run = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": [DEEP]}, "two": {"a": [HALF]}}, {"two": other})
    assert figures.heads([run]) == ["eagle3", "eagle2"]
    points = [lines(figures.efficiency([run], head).figure.axes[0])[0] for head in ("eagle3", "eagle2")]
    assert points == [[(3, 4)], [(2, 2)]]
    stems = [plot.stem for plot in figures.all_plots([run])]
    assert [stem for stem in stems if stem.startswith("eff")] == ["efficiency_eagle3", "efficiency_eagle2"]


def test_accepted_length_draws_each_prompt_in_its_category() -> None:
    """Categories math (prompt a) and coding (b, c): MAT 4; 1.5 and 2, pooled 5 tokens in 3 rounds."""
    answers = {"ar": {"a": [PLAIN], "b": [PLAIN], "c": [PLAIN]}, "talon": {"a": [DEEP], "b": [HALF, MISS], "c": [HALF]}}
    run = make_run(answers, categories={"a": "math", "b": "coding", "c": "coding"})
    plain = make_run({"ar": {"d": [PLAIN]}, "talon": {"d": [MISS]}}, dataset="gsm8k")
    plot = figures.accepted_length([run, plain])
    (axis,) = plot.figure.axes
    assert [text.get_text() for text in axis.get_xticklabels()] == [
        "mt_bench: math (1)",
        "mt_bench: coding (2)",
        "gsm8k (1)",
    ]
    drawn = [line for line in lines(axis) if len({x for x, _ in line}) == len(line)]
    dots, pooled = drawn[0:6:2], drawn[1:6:2]
    assert [[y for _, y in part] for part in dots] == [[4], [1.5, 2], [1]]
    assert [[round(x) for x, _ in part] for part in dots] == [[0], [1, 1], [2]]
    assert pooled == [[(0, 4)], [(1, pytest.approx(5 / 3))], [(2, 1)]]
    assert bars(axis)[1][:, 1].tolist() == ends(ratio_of_sums([3, 2], [2, 1])) == [1.5, 2.0]
    assert "(n = 3 prompts)" in plot.caption
    assert f"TALON {np.std([4, 1.5, 2], ddof=1):.2f} ({np.std([4, 2, 1, 2], ddof=1):.2f})" in plot.caption


def test_tree_depth_and_width_draw_the_trees() -> None:
    run = two_prompts()
    depth, width = figures.tree_depth([run]), figures.tree_width([run])
    assert lines(depth.figure.axes[0]) == [[(1, 0), (2, pytest.approx(2 / 3)), (3, pytest.approx(1 / 3))]]
    assert lines(width.figure.axes[0]) == [[(1, 3), (2, 2), (3, 1)]]
    assert band(depth.figure.axes[0], 0) == ([0, 0, 0], [0, 1, 1])
    mean = ratio_of_sums([3, 4], [1, 2])
    assert f"TALON {mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]" in depth.caption
    assert "toy / mt_bench: TALON 3." in width.caption
    uneven = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": [([2, 4], []), ([2, 1], []), ([2], [])]}})
    axis = figures.tree_width([uneven]).figure.axes[0]
    assert lines(axis) == [[(1, 2), (2, 2.5)]]
    assert band(axis, 0) == ([2, 1], [2, 4])


def test_layers_that_hardly_any_tree_has_are_left_out() -> None:
    rounds = [([2, 1], [])] * 199 + [([2, 1, 1], [])]
    run = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": rounds}})
    assert lines(figures.tree_width([run]).figure.axes[0]) == [[(1, 2), (2, 1)]]
    assert "fewer than 1 % of the trees" in figures.tree_width([run]).caption


def test_sweep_draws_speed_length_and_passes_by_value() -> None:
    """Value i: i deep rounds (4 tokens, 3 passes) and 2 others on a prompt; HALF 2 tokens, MISS 1, 2 passes each."""
    run = sweep_run("alpha", [0.03, 0.001, 0.3])
    plot = figures.sweep([run], "alpha")
    speed, mat, eta = plot.figure.axes
    values = [0.001, 0.03, 0.3]
    hits = [1, 0, 2]  # in the order of values
    tokens = [[4 * hit + 4, 4 * hit + 3] for hit in hits]
    rounds = [[hit + 2] * 2 for hit in hits]
    passes = [[3 * hit + 4] * 2 for hit in hits]
    ms = [[17 * hit + 30] * 2 for hit in hits]
    lengths = [ratio_of_sums(top, bottom) for top, bottom in zip(tokens, rounds, strict=True)]
    assert lines(mat) == [[(x, pytest.approx(one.value)) for x, one in zip(values, lengths, strict=True)]]
    assert band(mat, 0) == (pytest.approx([one.low for one in lengths]), pytest.approx([one.high for one in lengths]))
    drafts = [sum(top) / sum(bottom) for top, bottom in zip(passes, rounds, strict=True)]
    assert lines(eta) == [[(x, pytest.approx(y)) for x, y in zip(values, drafts, strict=True)]]
    (line,) = [line for line in lines(speed) if len(line) == 3]
    speeds = [11 / (sum(time) / sum(token)) for time, token in zip(ms, tokens, strict=True)]
    assert line == [(x, pytest.approx(y)) for x, y in zip(values, speeds, strict=True)]
    assert [label.get_text() for label in speed.get_xticklabels()] == ["0.001", "0.03", "0.3"]
    assert speed.get_xscale() == "log"
    assert f"talon on toy / mt_bench at 0.3 ({max(speeds):.2f} [" in plot.caption
    assert "n = 2 prompts" in plot.caption


def test_sweeps_of_two_methods_share_a_panel_and_fixed_methods_are_lines() -> None:
    talon = sweep_run("budget", [8, 16], fixed="lookup")
    other = sweep_run("budget", [8, 16, 32], base="eagle3")
    plot = figures.sweep([talon, other], "budget")
    speed, mat, _ = plot.figure.axes
    assert [[x for x, _ in line] for line in lines(mat)] == [[8, 16], [8, 16, 32]]
    level = talon.summaries["lookup"].speedup
    assert [line.get_ydata() for line in speed.lines if list(line.get_ydata()) == [level] * 2]
    labels = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert labels == ["talon", "eagle3", "lookup (fixed)"]
    assert speed.get_xscale() == "linear"


def test_verify_cost(tmp_path: Path) -> None:
    file = tmp_path / "verify_cost.json"
    file.write_text(json.dumps(COST), encoding="utf-8")
    plot = figures.verify_cost([file, COST | {"context": 512}])
    (axis,) = plot.figure.axes
    assert lines(axis) == [[(1, 10.0), (60, 25.0)]] * 2
    assert band(axis, 1) == ([9.0, 24.0], [12.0, 27.0])
    assert "context 512: 10.00 ms for 1, 25.00 ms for 60 (2.50 times)." in plot.caption
    with pytest.raises(UsageError, match="lacks 'ms_p90'"):
        figures.verify_cost([COST | {"rows": [{"tokens": 1, "ms_median": 1.0, "ms_p10": 1.0}]}])


def test_colours_follow_the_method_and_sweeps_are_ordered() -> None:
    """A method has one colour in all figures, whatever else a run holds; variants go from dark to light."""
    full = two_prompts()
    part = make_run({"ar": {"a": [PLAIN]}, "talon": {"a": [HALF]}}, dataset="gsm8k")
    plots = {plot.stem: plot for plot in figures.all_plots([full, part])}
    colour = {
        line.get_color() for stem in ("funnel_run_0", "funnel_run_1") for line in plots[stem].figure.axes[0].lines[-1:]
    }
    assert len(colour) == 1
    sweep = figures.tree_depth([sweep_run("alpha", [0.1, 0.3, 0.001])])
    shades = [
        sum(int(line.get_color()[place : place + 2], 16) for place in (1, 3, 5)) for line in sweep.figure.axes[0].lines
    ]
    order = [shades[2], shades[0], shades[1]]
    assert order == sorted(order)
    assert len(set(order)) == 3


@pytest.mark.parametrize(
    ("change", "headings"),
    [
        ({"temperature": 1.0}, ["toy (T = 0)", "toy (T = 1)"]),
        ({"max_new_tokens": 32}, ["toy (max 64 tokens)", "toy (max 32 tokens)"]),
        ({}, ["toy [one]", "toy [two]"]),
    ],
)
def test_sweeps_that_differ_in_a_setting_or_repeat_each_other_have_a_row_each(change: dict, headings: list) -> None:
    """No line mixes two runs: each has the values of one sweep, in order; the caption and the table name both."""
    runs = [sweep_run("alpha", [0.1, 0.3, 0.5], path=path) for path in ("one", "two")]
    runs[1].info["decode"].update(change)
    plot = figures.sweep(runs, "alpha")
    assert len(plot.figure.axes) == 6
    assert [axis.get_ylabel() for axis in plot.figure.axes[::3]] == [f"{heading}\nmt_bench" for heading in headings]
    for axis in plot.figure.axes[1:3] + plot.figure.axes[4:]:
        assert [[x for x, _ in line] for line in lines(axis)] == [[0.1, 0.3, 0.5]]
    table = figures.sweep_table(runs, "alpha")
    assert not table.duplicated(["target", "dataset", "base", "value"]).any()
    assert set(table["target"]) == set(headings)
    for heading in headings:
        assert f"talon on {heading} / mt_bench at" in plot.caption


@pytest.mark.parametrize("others", [0, 1])
def test_a_sweep_of_which_every_variant_failed_is_drawn(others: int) -> None:
    """Its row stays empty, alone or beside a sweep that went well."""
    failed = sweep_run("alpha", [0.1, 0.3], dataset="gsm8k")
    failed.turns.loc[failed.turns["method"] != "ar", "status"] = "failed"
    runs = [failed, *(sweep_run("alpha", [0.1, 0.3]) for _ in range(others))]
    plot = figures.sweep(runs, "alpha")
    assert [lines(axis) for axis in plot.figure.axes[1:3]] == [[], []]
    assert [len(lines(axis)[0]) for axis in plot.figure.axes[4:6]] == [2] * (2 * others)
    for axis in plot.figure.axes:
        assert all(map(math.isfinite, (*axis.get_xlim(), *axis.get_ylim())))
    assert "toy / gsm8k, talon, alpha 0.1: 2 turns failed, 0 skipped, 0 measured." in plot.caption
    if not others:
        assert "Highest: none measured." in plot.caption
        assert [plot.stem for plot in figures.all_plots(runs)] == ["sweep_alpha", "round_time"]


@pytest.mark.parametrize(
    ("status", "counts"), [("failed", "1 turns failed, 0 skipped"), ("skipped", "0 turns failed, 1 skipped")]
)
def test_every_caption_counts_the_turns_that_were_not_measured(status: str, counts: str) -> None:
    run = two_prompts()
    run.turns.loc[(run.turns["method"] == "talon") & (run.turns["prompt_id"] == "b"), "status"] = status
    plots = figures.all_plots([run])
    assert len(plots) == 8
    for plot in plots:
        assert f"mt_bench, TALON: {counts}, 1 measured." in plot.caption, plot.stem
    assert "measured." not in figures.speedup([two_prompts()]).caption


BROKEN = {
    "{": "is no JSON",
    "": "is no JSON",
    "[]": "holds other types",
    "null": "holds other types",
    '"rows"': "holds other types",
    "{}": "lacks 'rows'",
    json.dumps(COST | {"rows": None}): "holds other types",
    json.dumps(COST | {"rows": {"tokens": 1}}): "holds other types",
    json.dumps(COST | {"rows": []}): "has no rows",
    json.dumps({key: value for key, value in COST.items() if key != "dtype"}): "lacks 'dtype'",
    **{
        json.dumps(COST | {"rows": [COST["rows"][0] | {"ms_median": value}]}): f"has {shown} for a number above 0"
        for value, shown in (
            ("10", "'10'"),
            (None, "None"),
            (True, "True"),
            (0.0, "0.0"),
            (math.nan, "nan"),
            ([1], r"\[1\]"),
        )
    },
}


@pytest.mark.parametrize(("content", "message"), BROKEN.items())
def test_a_broken_verify_cost_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "verify_cost_x.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=rf"verify_cost_x\.json {message}.*: expected target, dtype") as error:
        figures.verify_cost([file])
    assert "\n" not in str(error.value)


def test_a_verify_cost_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "verify_cost.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"verify_cost\.json is no JSON"):
        figures.verify_cost([tmp_path / "verify_cost.json"])
