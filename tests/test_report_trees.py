"""Draft trees of a run: reading order, places without overlap, the answer so far, and the figure of two trees."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle
from nbclient import NotebookClient

from run_records import write_run
from talon_bench.errors import UsageError
from talon_bench.records import TREES
from talon_bench.report.load import load_run
from talon_bench.report.tree_view import BOX, percent, tree_view
from talon_bench.report.trees import (
    LABEL_CELLS,
    DraftTree,
    _arrange,
    answer_before,
    label,
    load_trees,
    opening_pair,
    round_table,
)
from tree_records import HOSTILE, piece, tree_row, write_trees


def arranged(parents: list[int], scores: list[float], path: list[int], **other: object) -> DraftTree:
    pieces = [f"n{node}" for node in range(len(parents))]
    own = {"pieces": pieces, "next_piece": "own", "emitted": len(path), "draft_passes": 2}
    return _arrange(SimpleNamespace(parents=parents, scores=scores, path=path, **(own | other)))


def test_reading_order_of_a_tree_worked_out_by_hand() -> None:
    """Root 0; children 1 (.5), 2 (.3), 3 (.1); 4 and 5 under 1; 6 under 3. Accepted: 3. Own token under 3, before 6."""
    tree = arranged([-1, 0, 0, 0, 1, 1, 3], [math.log(p) for p in (1, 0.5, 0.3, 0.1, 0.2, 0.2, 0.05)], [0, 3])
    assert tree.pieces == ["n0", "n3", "own", "n6", "n1", "n4", "n5", "n2"]
    assert tree.depths == [0, 1, 2, 2, 1, 2, 2, 1]
    assert tree.parents == [-1, 0, 1, 1, 0, 4, 4, 0]
    assert tree.rows == [0, 0, 0, 1, 2, 2, 3, 4]
    assert tree.accepted == [0, 1]
    assert tree.own == 2
    assert tree.probabilities == pytest.approx([1, 0.1, None, 0.05, 0.5, 0.2, 0.2, 0.3])
    assert tree.answer_pieces == ["n3", "own"]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[float], list[int]]:
    """(parents, scores, path) of any tree whose nodes come after their parents."""
    size = draw(st.integers(1, 24))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]
    scores = [0.0]
    for parent in parents[1:]:
        scores.append(scores[parent] - draw(st.sampled_from([0.0, 0.5, 2.0])))
    node = draw(st.integers(0, size - 1))
    path = [node]
    while node:
        node = parents[node]
        path.append(node)
    return parents, scores, path[::-1]


@given(trees())
def test_every_tree_is_drawn_whole_and_without_overlaps(drawn: tuple[list[int], list[float], list[int]]) -> None:
    parents, scores, path = drawn
    tree = arranged(parents, scores, path)
    numbers = [None if piece == "own" else int(piece[1:]) for piece in tree.pieces]
    assert sorted(number for number in numbers if number is not None) == list(range(len(parents)))
    for node, parent in enumerate(tree.parents):
        if numbers[node] is None:
            assert numbers[parent] == path[-1]
        elif parent >= 0:
            assert numbers[parent] == parents[numbers[node]]
            assert tree.depths[node] == tree.depths[parent] + 1
    places = list(zip(tree.depths, tree.rows, strict=True))
    assert len(set(places)) == len(places)
    assert [numbers[node] for node in tree.accepted] == path
    assert [tree.rows[node] for node in [*tree.accepted, tree.own]] == [0] * (len(path) + 1)
    for _, group in itertools.groupby(
        sorted(range(1, len(numbers)), key=lambda n: (tree.parents[n], n)), tree.parents.__getitem__
    ):
        shares = [scores[numbers[node]] for node in group if node not in (*tree.accepted, tree.own)]
        assert shares == sorted(shares, reverse=True)


def test_trees_of_a_run_are_its_records(tmp_path: Path) -> None:
    run = load_run(write_trees(write_run(tmp_path / "run"), prompts=1))
    answers = load_trees(run)
    assert list(answers) == [("p0", 0, method) for method in ("eagle3", "talon", "medusa")], "AR drafts nothing"
    tree = answers["p0", 0, "talon"][0]
    own, second = piece("talon", "p0", 0, 4), piece("talon", "p0", 0, 2)
    assert tree.pieces == ["<s>", second, own, "</script><!--", HOSTILE]
    assert tree.accepted == [0, 1]
    assert tree.probabilities == pytest.approx([1, 0.3, None, 0.25, 0.6])
    assert (tree.emitted, tree.draft_passes, tree.answer_pieces) == (2, 2, [second, own])


def test_the_answer_so_far_is_what_earlier_rounds_emitted(tmp_path: Path) -> None:
    answer = load_trees(load_run(write_trees(write_run(tmp_path / "run"))))["p1", 0, "eagle3"]
    assert answer_before(answer, 0) == "<s>"
    assert answer_before(answer, 2) == "<s> eagle3p1r0n2 eagle3p1r0n4 eagle3p1r1n2 eagle3p1r1n4"
    assert answer[2].pieces[0] == " eagle3p1r1n4", "the root is the last token of the answer so far"


def test_the_last_round_adds_no_more_than_the_answer_holds() -> None:
    tree = arranged([-1, 0, 1], [0.0, -1.0, -2.0], [0, 1, 2], emitted=2)
    assert tree.answer_pieces == ["n1", "n2"]


def test_a_run_without_trees_has_none(tmp_path: Path) -> None:
    assert load_trees(load_run(write_run(tmp_path / "run"))) == {}


def test_damaged_and_contradicting_trees_are_refused(tmp_path: Path) -> None:
    folder = write_trees(write_run(tmp_path / "run"))
    run = load_run(folder)
    rows = pq.read_table(folder / "trees.parquet").to_pylist()
    fresh = tree_row({"prompt_id": "p0", "turn": 0, "method": "talon", "round": 99}, 1)
    for wrong in (
        [*rows, fresh],
        [{**rows[0], "path": [0, 1, 2]}, *rows[1:]],
        [*rows[:-1], {**rows[-1], "tokens": [1]}],
    ):
        pq.write_table(pa.Table.from_pylist(wrong, TREES), folder / "trees.parquet")
        with pytest.raises(UsageError, match="expected the same nodes and path"):
            load_trees(run)
    (folder / "trees.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(UsageError, match="damaged"):
        load_trees(run)


def test_the_rounds_of_an_answer_as_numbers() -> None:
    hit = arranged([-1, 0, 0, 1], [0.0, -0.1, -0.2, -0.3], [0, 2])
    miss = arranged([-1, 0], [0.0, -0.1], [0])
    table = round_table([hit, miss])
    assert table.to_numpy().tolist() == [[2, 2, 1, "n2own"], [2, 1, 0, "own"]], "the target's own token is no layer"


def test_the_pair_to_open_with_drafts_on_one_head() -> None:
    kinds = {"lookup": ("lookup", None), "eagle2": ("eagle", "eagle2"), "talon_eagle2": ("talon", "eagle2")}
    kinds |= {"eagle3": ("eagle", "eagle3"), "talon": ("talon", "eagle3"), "talon_small": ("talon", "eagle3")}
    run = SimpleNamespace(methods={name: {"policy": policy, "head": head} for name, (policy, head) in kinds.items()})
    assert opening_pair(run, list(kinds)) == ("eagle3", "talon")
    assert opening_pair(run, ["lookup", "eagle2", "talon_eagle2"]) == ("eagle2", "talon_eagle2")
    assert opening_pair(run, ["talon", "talon_small"]) == ("talon_small", "talon")
    assert opening_pair(run, ["lookup", "talon"]) == ("lookup", "talon")
    assert opening_pair(run, ["lookup"]) == ("lookup", "lookup")


def test_labels_show_white_space_and_stay_short() -> None:
    assert label(" the") == "␣the"
    assert label("\n\n\t") == "↵↵⇥"
    assert label("") == "∅"
    assert label("\x00\u202e") == "\\x00\\x202e"
    assert label("a" * 12) == "a" * 12
    assert label("a" * 13) == "a" * 11 + "…"
    assert label("漢" * 7) == "漢" * 5 + "…", "wide letters take two cells"
    assert LABEL_CELLS == 12


def test_percent_takes_at_most_five_characters() -> None:
    assert [percent(p) for p in (1, 0.5, 0.0995, 0.0994, 0.0005, 0.0004, 0)] == [
        *("100%", "50%", "10%", "9.9%", "0.1%", "<.1%", "<.1%"),
    ]


def wide_tree() -> DraftTree:
    """60 nodes in nine layers, with long, hostile and unprintable texts."""
    parents = [-1, *([0] * 10), *(1 + node // 4 for node in range(36)), *range(46, 59)]
    pieces = ["root", "$x_1$", "\\frac{a}", " extraordinarily", "漢字漢字漢字漢", "\U0001f600"] * 10
    scores = [0.0] + [-0.1 * node for node in range(1, 60)]
    assert len(parents) == len(scores) == 60
    return arranged(parents, scores, [0, 1, 11], pieces=pieces)


def test_a_figure_of_sixty_nodes_has_no_overlaps_and_keeps_texts_inside_their_nodes() -> None:
    tree = wide_tree()
    small = arranged([-1, 0], [0.0, -1.0], [0])
    with matplotlib.rc_context({"text.usetex": False}):
        figure = tree_view([("TALON, round 1 of 3", tree), ("EAGLE-3, round 1 of 2", small)])
        figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    for axes, drawn in zip(figure.axes, (tree, small), strict=True):
        nodes = [
            shape for shape in axes.patches if isinstance(shape, Rectangle) and shape.get_height() == pytest.approx(BOX)
        ]
        assert len(nodes) == len(drawn.pieces)
        boxes = [shape.get_window_extent(renderer) for shape in nodes]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        texts = [text.get_window_extent(renderer) for text in axes.texts]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(texts, 2))
        assert all(
            any(box.x0 <= text.x0 and text.x1 <= box.x1 for box in boxes if box.overlaps(text)) for text in texts
        )
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    assert "$x_1$" in [text.get_text() for text in figure.axes[0].texts], "a token is no formula"


def test_the_figure_marks_accepted_nodes_and_the_targets_own_token() -> None:
    figure = tree_view([("t", arranged([-1, 0, 0, 2], [0.0, -0.5, -1.2, -1.4], [0, 2]))])
    [axes] = figure.axes
    styles = [
        (shape.get_linewidth(), shape.get_linestyle() != "-" and shape.get_linestyle() != "solid")
        for shape in axes.patches
        if shape.get_height() == pytest.approx(BOX)
    ]
    assert styles == [(1.6, False), (1.6, False), (1.6, True), (0.6, False), (0.6, False)]
    assert [text.get_text() for text in axes.texts] == ["n0", "n2", "30%", "own", "n3", "25%", "n1", "61%"]
    assert axes.get_title(loc="left") == "t"


@pytest.mark.parametrize("kept", [True, False], ids=["trees", "no trees"])
def test_the_notebook_opens_with_outputs_and_runs(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a")
    if kept:
        write_trees(write_run(tmp_path / "b", dataset="mt_bench"))
    monkeypatch.setenv("TALON_BENCH_RESULTS", str(tmp_path))
    folder = Path(__file__).parents[1] / "notebooks"
    notebook = nbformat.read(folder / "05_tree_explorer.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert any(cell.get("outputs") for cell in notebook.cells), "opens with outputs"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert ("smollm2-135m / mt_bench, prompts p0, p1" in printed) is kept
    assert ("no run with draft trees there" in printed) is not kept
    assert sum("image/png" in output.get("data", {}) for output in outputs) == kept
