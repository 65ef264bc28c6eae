"""What a reader trips over: text on text, text cut off, captions without n; and runs with nearly nothing in them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from figure_runs import DEEP, HALF, MISS, PLAIN, TALON, make_run, sweep_run, two_prompts
from talon_bench.errors import UsageError
from talon_bench.report import figures
from talon_bench.report.load import RunData

SETS = ("alpaca", "gsm8k", "humaneval", "mt_bench", "qa", "cnn_dm")
LABELS = {
    "lookup": "Prompt lookup (5)",
    "eagle2": "EAGLE-2 (60 nodes)",
    "talon_eagle2": "TALON on EAGLE-2 (60 nodes)",
    "eagle3": "EAGLE-3 (60 nodes)",
    "talon": "TALON (60 nodes)",
    "eagle3_small": "EAGLE-3 (6 nodes)",
    "talon_small": "TALON (6 nodes)",
}
KINDS = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
WIDE = ([10, 49, 30, 20, 10, 5, 3, 2], [0, 30, 2, 1])


def line_up(dataset: str, target: str = "smollm2-135m") -> RunData:
    """All methods of the main table; the prompts of mt_bench have its eight categories."""
    kinds = KINDS if dataset == "mt_bench" else (dataset,)
    prompts = {f"{kind}-{number}": kind for kind in kinds for number in range(3)}
    answers = {"ar": {prompt: [PLAIN] * 4 for prompt in prompts}}
    for place, method in enumerate(LABELS):
        rounds = [WIDE, DEEP, HALF, MISS][: 2 + place % 3]
        answers[method] = {prompt: rounds * (1 + number % 3) for number, prompt in enumerate(prompts)}
    settings = {
        method: TALON | {"label": label, "head": None if method == "lookup" else f"eagle{2 + ('2' not in label)}"}
        for method, label in LABELS.items()
    }
    return make_run(answers, settings, prompts, dataset=dataset, target=target, path=f"{target}-{dataset}")


def texts(figure: Figure) -> list[Text]:
    """Everything written on a figure that is seen."""
    found: list[Text] = [text for legend in figure.legends for text in legend.get_texts()]
    for axis in figure.axes:
        low, high = sorted(axis.get_xlim()), sorted(axis.get_ylim())
        ticks = [(tick.label1, tick.get_loc(), low) for tick in axis.xaxis.get_major_ticks()]
        ticks += [
            (tick.label2 if tick.label2.get_visible() else tick.label1, tick.get_loc(), high)
            for tick in axis.yaxis.get_major_ticks()
        ]
        found += [label for label, place, (first, last) in ticks if first * (1 - 1e-9) <= place <= last * (1 + 1e-9)]
        found += [axis.title, axis._left_title, axis.xaxis.label, axis.yaxis.label, *axis.texts]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def collisions(figure: Figure) -> list[str]:
    """Pairs of texts that cover each other, and texts that leave the figure."""
    figure.canvas.draw()
    boxes = [(text, text.get_window_extent()) for text in texts(figure)]
    sheet = figure.bbox.padded(1)
    found = [f"{text.get_text()!r} leaves the figure" for text, box in boxes if not contains(sheet, box)]
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        if one.get_rotation() % 90 and other.get_rotation() % 90:
            gap = abs(first.x1 - second.x1) * math.sin(math.radians(one.get_rotation()))
            clash = first.y1 == pytest.approx(second.y1) and gap < one.get_fontsize() * figure.dpi / 72
        else:
            shared = Bbox.intersection(first, second)
            clash = shared is not None and min(shared.width, shared.height) > 1
        if clash:
            found.append(f"{one.get_text()!r} on {other.get_text()!r}")
    return found


def contains(outer: Bbox, inner: Bbox) -> bool:
    return outer.x0 <= inner.x0 and outer.y0 <= inner.y0 and inner.x1 <= outer.x1 and inner.y1 <= outer.y1


def test_the_check_sees_collisions() -> None:
    figure = figures.round_time(two_prompts()).figure
    assert collisions(figure) == []
    bar = figure.axes[0].texts[0]
    figure.axes[0].text(*bar.get_position(), "on top")
    assert any("on top" in found for found in collisions(figure))
    figure.axes[0].text(-9, 0, "outside")
    assert any("leaves the figure" in found for found in collisions(figure))


@pytest.mark.parametrize("count", [1, 6])
def test_no_text_covers_another(count: int) -> None:
    runs = [line_up(dataset) for dataset in SETS[-count:]]
    plots = figures.all_plots(runs)
    assert len(plots) == 6 + 3 * count
    for plot in plots[: 9 if count == 1 else 6]:
        assert collisions(plot.figure) == [], plot.stem
        assert plot.figure.get_figwidth() <= 7.2, "fits a page"
    for plot in plots:
        drawn = [run for run in runs if run.path.name in plot.stem] if plot in plots[6:] else runs
        for run in drawn:
            assert (
                f"{run.target} / {run.dataset} (n = {24 if run.dataset == 'mt_bench' else 3} prompts)" in plot.caption
            )
        assert "prompts)" in plot.caption
        assert "Test CPU, 4 cores, 2 threads; float32" in plot.caption


def test_no_text_covers_another_in_a_sweep() -> None:
    run = sweep_run("alpha", [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5], fixed="EAGLE-3 (60 nodes)")
    plots = figures.all_plots([run])
    assert [plot.stem for plot in plots] == [
        *("sweep_alpha", "efficiency_alpha", "tree_depth_alpha", "tree_width_alpha"),
        *("funnel", "heatmap", "round_time"),
    ]
    for plot in plots:
        assert collisions(plot.figure) == [], plot.stem
        assert "n = 2 prompts" in plot.caption


@pytest.mark.parametrize(
    ("field", "values"),
    [("budget", [8, 12, 16, 32, 48, 60, 96, 120]), ("init_layers", [0, 1, 2, 3]), ("root_top_k", [2, 5, 10, 20])],
)
def test_no_text_covers_another_in_sweeps_of_two_data_sets(field: str, values: list[int]) -> None:
    runs = [sweep_run(field, values, dataset=dataset, target=dataset, path=dataset) for dataset in SETS[2:4]]
    plot = figures.sweep(runs, field)
    assert collisions(plot.figure) == []
    assert "humaneval / humaneval (n = 2 prompts), mt_bench / mt_bench (n = 2 prompts)" in plot.caption


def test_targets_get_figures_of_their_own() -> None:
    runs = [
        two_prompts(target=target, dataset="gsm8k", path=f"{target}-gsm8k") for target in ("smollm2-135m", "llama31_8b")
    ]
    stems = [plot.stem for plot in figures.all_plots(runs)]
    assert len(set(stems)) == len(stems)
    assert {"speedup", "tree_depth_smollm2-135m", "tree_depth_llama31-8b", "heatmap_llama31_8b-gsm8k"} <= set(stems)


def test_sweeps_of_two_methods_get_figures_of_their_own() -> None:
    """Sweeps of one setting share its figure; what lays data sets side by side is drawn for each method that is varied."""
    sweeps = [sweep_run("budget", [8, 60], base=base, path=base) for base in ("talon", "talon_small")]
    drawn = ["efficiency", "tree_depth", "tree_width"]
    shared = ["sweep_budget", *(f"{stem}_budget_{base}" for base in ("talon", "talon_small") for stem in drawn)]
    single = [f"{stem}_{base}" for base in ("talon", "talon_small") for stem in ("funnel", "heatmap", "round_time")]
    assert [plot.stem for plot in figures.all_plots(sweeps)] == [*shared, *single]
    plain = ["speedup", "efficiency", "accepted_length", "tree_depth", "tree_width"]
    single = [f"{stem}" for stem in ("funnel", "heatmap", "round_time")]
    assert [plot.stem for plot in figures.all_plots([*sweeps, two_prompts()])] == [*plain, *shared, *single]


def test_a_run_with_ar_alone() -> None:
    plots = figures.all_plots([make_run({"ar": {"a": [PLAIN]}})])
    assert [plot.stem for plot in plots] == ["speedup", "round_time"]
    assert all(plot.png().startswith(b"\x89PNG") for plot in plots)
    for draw in (lambda run: figures.accepted_length([run]), figures.heatmap):
        with pytest.raises(UsageError, match="toy / mt_bench has no"):
            draw(make_run({"ar": {"a": [PLAIN]}}))


@pytest.mark.parametrize("rounds", [[DEEP], [MISS], [PLAIN]])
def test_one_prompt_and_one_method(rounds: list) -> None:
    """No interval is known, and none is drawn; nothing fails where nothing was accepted or drafted."""
    for plot in figures.all_plots([make_run({"ar": {"a": [PLAIN]}, "talon": {"a": rounds}})]):
        assert collisions(plot.figure) == [], plot.stem
        assert "n = 1 prompts" in plot.caption


def test_a_method_that_failed_everywhere_is_left_out() -> None:
    run = two_prompts()
    run.turns.loc[run.turns["method"] == "eagle3", "status"] = "failed"
    failed = run.rounds["method"] == "eagle3"
    object.__setattr__(run, "rounds", run.rounds[~failed])
    for plot in figures.all_plots([run]):
        drawn = [text.get_text() for text in texts(plot.figure)]
        assert plot.stem == "speedup" or "EAGLE-3" not in drawn, plot.stem
        assert collisions(plot.figure) == [], plot.stem


def test_no_runs_give_no_figures(tmp_path: Path) -> None:
    assert figures.all_plots([], tmp_path) == []
