"""The report page in a headless Chromium: the tree explorer by address, keyboard and controls; narrow, dark, without network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, addresses, find_browser
from run_records import AR_MS, FAST_MS, SLOW_MS, write_run
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.page import write_page
from talon_bench.report.trees import DraftTree, answer_before, label, load_trees
from tree_records import CLOSING, HOSTILE, write_trees

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH")

MS = {"ar": AR_MS, "eagle3": SLOW_MS, "talon": FAST_MS}
COUNTS = {"talon": [3, 5, 4, 4, 4, 4]}  # EAGLE-3 has four rounds for every prompt
START = "run=b&prompt=p1&turn=1&round=3&left=talon&right=eagle3"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a page of two runs with trees."""
    root = tmp_path_factory.mktemp("browser")
    write_trees(write_run(root / "a", MS))
    write_trees(write_run(root / "b", MS, dataset="mt_bench", counts=COUNTS))
    return write_page(load_runs(root), root / "report.html").as_uri()


@pytest.fixture(scope="module")
def answers(page: str) -> dict[str, list[DraftTree]]:
    """Trees of prompt p1 of run b, by method."""
    folder = Path(page.removeprefix("file://")).parent / "b"
    return {method: own for (prompt, _, method), own in load_trees(load_run(folder)).items() if prompt == "p1"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(shared: Browser) -> Iterator[Browser]:
    """At 1280 x 900, light; a page may report no error and ask for nothing but itself."""
    shared.messages.clear()
    shared.requests.clear()
    shared.resize(1280, 900)
    shared.prefer("light")
    yield shared
    assert shared.messages == []
    assert addresses(shared.requests) <= {"file", "data", "about"}


def nodes(browser: Browser, side: str) -> list[list[str]]:
    """(role, label) of each node that a panel draws."""
    drawn = f"[...document.querySelectorAll('[data-side={side}] [data-node]')]"
    return browser.run(f"{drawn}.map((node) => [node.getAttribute('class'), node.querySelector('text').textContent])")


def expected(tree: DraftTree) -> list[list[str]]:
    roles = [
        "own" if node == tree.own else "accepted" if node in tree.accepted else "drafted"
        for node in range(len(tree.pieces))
    ]
    return [[role, label(piece)] for role, piece in zip(roles, tree.pieces, strict=True)]


def place(browser: Browser) -> str:
    return browser.run("document.querySelector('.place').textContent")


def text(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector({json.dumps(selector)}).textContent")


def choose(browser: Browser, name: str, value: str) -> None:
    """Takes an option of a select, as a reader does."""
    browser.run(
        f"(() => {{ const one = document.querySelector('[name={name}]'); one.value = '{value}';"
        " one.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


def test_an_address_shows_its_round_in_both_panels(browser: Browser, page: str, answers: dict) -> None:
    browser.open(f"{page}#{START}")
    assert place(browser) == "3 of 5", "the longer of the two answers"
    for side, method in (("left", "talon"), ("right", "eagle3")):
        tree = answers[method][2]
        assert nodes(browser, side) == expected(tree)
        so_far = answer_before(answers[method], 2) + "".join(tree.answer_pieces)
        assert text(browser, f"[data-side={side}] .answer") == so_far
        marks = browser.run(
            f"[...document.querySelectorAll('[data-side={side}] mark')].map((mark) => mark.textContent)"
        )
        assert marks == tree.answer_pieces
    assert (
        text(browser, "[role=status]")
        == "Round 3 of 5: TALON_x 50% & more accepted 1 of 3; EAGLE-3 (budget 60) accepted 1 of 3."
    )
    assert browser.run("document.getElementById('explorer-app').getBoundingClientRect().top") == pytest.approx(0, abs=5)


def test_numbers_and_bars_of_nodes_are_their_probabilities(browser: Browser, page: str) -> None:
    browser.open(f"{page}#{START}")
    drawn = "[...document.querySelectorAll('[data-side=left] [data-node]')]"
    numbers = browser.run(f"{drawn}.map((node) => node.querySelector('.probability')?.textContent ?? '')")
    assert sorted(numbers) == ["", "", "25%", "30%", "60%"]
    shares = browser.run(
        f"{drawn}.filter((node) => node.querySelector('.bar')).map((node) =>"
        " Math.round(100 * node.querySelector('.bar').width.baseVal.value / node.querySelector('.shape').width.baseVal.value))"
    )
    assert [f"{share}%" for share in shares] == [number for number in numbers if number]


def test_boxes_do_not_overlap_and_hold_their_texts(browser: Browser, page: str) -> None:
    browser.open(f"{page}#run=a&prompt=p0&turn=1&round=1&left=talon&right=eagle3")
    boxes = browser.run(
        "[...document.querySelectorAll('[data-side=left] [data-node]')].map((node) => {"
        " const box = node.querySelector('.shape').getBBox(), text = node.querySelector('text').getBBox();"
        " return [box.x, box.x + box.width, box.y, box.y + box.height, text.x, text.x + text.width]; })"
    )
    assert len(boxes) == 5
    for place, (left, right, top, bottom, start, end) in enumerate(boxes):
        assert left < start < end < right
        for other in boxes[:place]:
            assert right < other[0] or other[1] < left or bottom < other[2] or other[3] < top


def test_token_texts_stay_texts(browser: Browser, page: str) -> None:
    browser.open(f"{page}#run=a&prompt=p0&turn=1&round=1&left=talon&right=talon")
    shown = [name for _, name in nodes(browser, "left")]
    assert label(HOSTILE) in shown
    assert label(CLOSING) in shown
    titles = browser.run("[...document.querySelectorAll('[data-side=left] title')].map((title) => title.textContent)")
    assert any(title.startswith(f'"{HOSTILE}"') for title in titles), "the whole text of a shortened label"
    assert browser.run("document.querySelectorAll('#explorer-app script, #explorer-app b').length") == 0
    assert browser.run("document.scripts.length") == 2


def test_arrow_keys_step_through_rounds(browser: Browser, page: str) -> None:
    browser.open(f"{page}#{START}")
    browser.run("document.querySelector('[name=next]').focus()")
    browser.press("ArrowRight")
    assert place(browser) == "4 of 5"
    browser.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert place(browser) == "1 of 5"
    browser.press("ArrowLeft")
    assert place(browser) == "1 of 5", "there is none before the first"
    browser.press("End")
    assert place(browser) == "5 of 5"
    browser.run("document.querySelector('[name=round]').focus()")
    browser.press("ArrowLeft")
    assert place(browser) == "4 of 5", "the slider has the same keys"
    browser.press("Home")
    assert place(browser) == "1 of 5"


def test_keys_of_a_box_that_scrolls_are_its_own(browser: Browser, page: str) -> None:
    browser.open(f"{page}#{START}")
    browser.run("document.querySelector('[data-side=left] .tree').focus()")
    browser.press("ArrowRight")
    assert place(browser) == "3 of 5"


def test_every_control_is_reached_by_tab_has_a_name_and_shows_its_focus(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.run("document.querySelector('#explorer-app [name=run]').focus()")
    reached = []
    for _ in range(10):
        browser.press("Tab")
        focus = "document.activeElement"
        reached.append(browser.run(f"{focus}.name || {focus}.className"))
        assert browser.run(f"parseFloat(getComputedStyle({focus}).outlineWidth)") >= 2
    assert reached == ["prompt", "turn", "round", "next", "left", "answer", "box tree", "right", "answer", "box tree"]
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    kinds = {"combobox", "slider", "button", "link", "region", "image", "status", "table"}
    named = [node for node in tree if node.get("role", {}).get("value") in kinds and not node["ignored"]]
    nameless = [node["role"]["value"] for node in named if not node.get("name", {}).get("value")]
    assert nameless == ["status"], "the live region speaks its content"
    assert {"combobox", "slider", "button", "region", "image"} < {node["role"]["value"] for node in named}


def test_buttons_and_choices_change_the_round_and_the_address(browser: Browser, page: str, answers: dict) -> None:
    browser.open(f"{page}#{START}")
    browser.run("document.querySelector('[name=next]').click()")
    assert browser.run("new URLSearchParams(location.hash.slice(1)).get('round')") == "4"
    browser.run("document.querySelector('[name=next]').click()")
    assert browser.run("document.querySelector('[name=next]').disabled")
    assert text(browser, "[data-side=right] .facts") == "The answer was complete after round 4."
    assert browser.run("document.querySelector('[data-side=right] .tree').hidden")
    assert nodes(browser, "left") == expected(answers["talon"][4])
    choose(browser, "right", "talon")
    assert nodes(browser, "right") == expected(answers["talon"][4])
    choose(browser, "prompt", "p0")
    assert place(browser) == "1 of 3", "another prompt begins with its first round"
    address = browser.run("location.hash")
    assert address == "#run=b&prompt=p0&turn=1&round=1&left=talon&right=talon"
    browser.open(f"{page}{address}")
    assert browser.run("location.hash") == address
    assert place(browser) == "1 of 3"


def test_addresses_of_sections_and_nonsense_leave_a_whole_explorer(browser: Browser, page: str) -> None:
    browser.open(f"{page}#{START}")
    browser.run("location.hash = '#figures'")
    assert place(browser) == "3 of 5"
    browser.open(f"{page}#run=gone&prompt=%3Cb%3E&turn=x&round=-7&left=none&right=none")
    assert place(browser) == "1 of 4"
    assert text(browser, "[name=run] option:checked") == "smollm2-135m / gsm8k"


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_window(browser: Browser, page: str, width: int, scheme: str) -> None:
    browser.resize(width, 740)
    browser.prefer(scheme)
    browser.open(f"{page}#{START}")
    assert browser.run("document.documentElement.scrollWidth") <= width
    outside = "[...document.querySelectorAll('main *')].filter((one) => !one.closest('.box, .answer, option')"
    assert browser.run(f"{outside} && one.getBoundingClientRect().right > {width}).length") == 0
    sides = browser.run("[...document.querySelectorAll('.panel')].map((panel) => panel.getBoundingClientRect().left)")
    assert (sides[0] == sides[1]) is (width == 360), "side by side where there is room"
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 27)"}[scheme]
    ink = browser.run("getComputedStyle(document.querySelector('.tree text')).fill")
    assert ink == {"light": "rgb(26, 28, 32)", "dark": "rgb(232, 234, 238)"}[scheme]


def test_a_wide_table_scrolls_inside_its_box_with_its_row_names_in_view(browser: Browser, page: str) -> None:
    browser.resize(360, 740)
    browser.open(page)
    box = "document.querySelector('#results .box')"
    assert browser.run(f"{box}.scrollWidth > {box}.clientWidth")
    browser.run(f"{box}.scrollLeft = 200")
    name = "document.querySelector('#results tbody th[scope=row]').getBoundingClientRect()"
    assert browser.run(f"{name}.left >= 0 && {name}.right < 200")


def test_without_javascript_everything_else_is_readable(browser: Browser, page: str) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    words = " ".join(node["name"]["value"] for node in tree if node.get("name", {}).get("value"))
    assert "The tree explorer needs JavaScript" in words
    assert "2.00 [2.00, 2.00]" in words
