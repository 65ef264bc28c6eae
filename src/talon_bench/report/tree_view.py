"""Draft trees side by side as a figure: tokens, path probabilities, what was accepted, the target's own next token."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from talon_bench.report.figures.style import COLOURS, STYLE
from talon_bench.report.trees import DraftTree, label

SIZE = 7.0  # points of the letters
CELL = SIZE * 0.602 / 72  # inches of a character of DejaVu Sans Mono
ROW = 0.18  # inches from row to row
BOX = 0.14  # height of a node
NUMBER = 5  # cells of a probability
GAP = 3  # cells between two columns
MARGIN = 0.15
TITLE = 0.3
LEGEND = 0.3
FONT = FontProperties(family="DejaVu Sans Mono", size=SIZE)
ROLES = {
    "drafted": {"edgecolor": "#8b919c", "facecolor": "white", "linewidth": 0.6, "linestyle": "-"},
    "accepted": {"edgecolor": COLOURS[0], "facecolor": "#e1f0fa", "linewidth": 1.6, "linestyle": "-"},
    "own": {"edgecolor": COLOURS[1], "facecolor": "#fdeee2", "linewidth": 1.6, "linestyle": (0, (3, 1.5))},
}
NAMES = {"drafted": "drafted, not accepted", "accepted": "accepted path", "own": "the target's own next token"}


@matplotlib.rc_context(STYLE)
def tree_view(trees: Sequence[tuple[str, DraftTree]]) -> Figure:
    """One panel per (title, tree), left to right; a column per depth, the accepted path in the first row.

    The figure is as large as the trees need, so that no two nodes touch. The bar under a node is its path probability.
    """
    drawn = [(title, tree, _columns(tree)) for title, tree in trees]
    widths = [max(sum(columns) + GAP * (len(columns) - 1), len(title) + 2) * CELL for title, _, columns in drawn]
    rows = max(tree.rows[-1] + 1 for _, tree in trees)
    height = rows * ROW
    size = (sum(widths) + MARGIN * (len(trees) + 1), height + TITLE + LEGEND)
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    left = MARGIN
    for (title, tree, columns), width in zip(drawn, widths, strict=True):
        axes = figure.add_axes((left / size[0], LEGEND / size[1], width / size[0], height / size[1]))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        axes.set_title(title, loc="left", fontsize=9)
        _draw(axes, tree, columns)
        left += width + MARGIN
    keys = [Patch(label=NAMES[role], **look) for role, look in ROLES.items()]
    bar = Line2D([], [], color="#555555", linewidth=1.5, label="path probability")
    figure.legend(handles=[*keys, bar], loc="lower left", ncols=2 if size[0] < 7 else 4, fontsize=7)
    return figure


def _columns(tree: DraftTree) -> list[int]:
    """Width of each column in character cells: its longest label, with room for a probability below the root."""
    widths = [0] * (max(tree.depths) + 1)
    for node, depth in enumerate(tree.depths):
        number = 0 if tree.probabilities[node] is None or node == 0 else NUMBER + 1
        widths[depth] = max(widths[depth], len(_shown(tree.pieces[node])) + number + 2)
    return widths


def _draw(axes: Axes, tree: DraftTree, columns: Sequence[int]) -> None:
    starts = [CELL * (sum(columns[:depth]) + GAP * depth) for depth in range(len(columns))]
    path, lines = set(tree.accepted), {role: [] for role in ROLES}
    for node, (depth, row, parent) in enumerate(zip(tree.depths, tree.rows, tree.parents, strict=True)):
        role = "own" if node == tree.own else "accepted" if node in path else "drafted"
        x, y, width = starts[depth], row * ROW + ROW / 2, CELL * columns[depth]
        if node:
            end = starts[depth - 1] + CELL * columns[depth - 1]
            trunk, above = (end + x) / 2, tree.rows[parent] * ROW + ROW / 2
            lines[role].append([(end, above), (trunk, above), (trunk, y), (x, y)])
        axes.add_patch(Rectangle((x, y - BOX / 2), width, BOX, zorder=2, clip_on=False, **ROLES[role]))
        text = {"fontproperties": FONT, "va": "center_baseline", "zorder": 3, "parse_math": False}
        axes.text(x + CELL, y, _shown(tree.pieces[node]), **text)
        share = tree.probabilities[node]
        if node and share is not None:
            axes.text(x + width - CELL, y, percent(share), ha="right", color="#555555", **text)
            axes.add_patch(
                Rectangle((x, y + BOX / 2 - 0.02), width * share, 0.02, color="#555555", linewidth=0, zorder=2.5)
            )
    for role, segments in lines.items():
        look = ROLES[role]
        axes.add_collection(LineCollection(segments, colors=look["edgecolor"], linewidths=look["linewidth"], zorder=1))


def percent(share: float) -> str:
    """A probability in at most five characters."""
    if share < 0.0005:
        return "<.1%"
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def _shown(piece: str) -> str:
    """A node's label; a character that the figure's font lacks is written as its number."""
    font = get_font(findfont(FONT))
    return label(
        "".join(char if font.get_char_index(ord(char)) or char.isspace() else f"\\u{ord(char):04x}" for char in piece)
    )
