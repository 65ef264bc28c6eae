"""The report page from hand-made records: its numbers, that it needs nothing else, and that no text becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from analysis import report
from run_records import AR_MS, FAST_MS, MS, write_run
from talon_bench.report import page as page_package
from talon_bench.report.efficiency import efficiency_table, efficiency_text
from talon_bench.report.load import load_run, load_runs
from talon_bench.report.notes import DEFINITIONS
from talon_bench.report.page import content, page
from talon_bench.report.page.explorer import explorer_data
from talon_bench.report.render import number, speedup_text
from talon_bench.report.tables import main_table
from talon_bench.report.trees import load_trees
from tree_records import CLOSING, HOSTILE, write_trees

MARKUP = '<b onclick="x()">bold</b> & "more"'
VOID = {"meta", "img", "input", "link", "br"}
PLAIN_PAIR = {"ar": AR_MS, "talon": FAST_MS}


@dataclass
class Element:
    tag: str
    attributes: dict
    children: list = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        below = [child for child in self.children if isinstance(child, Element)]
        found = [
            child
            for child in below
            if child.tag == tag and all(child.attributes.get(name) == value for name, value in attributes.items())
        ]
        return found + [other for child in below for other in child.all(tag, **attributes)]


class Reader(HTMLParser):
    """The page as elements; an unclosed or stray end tag is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open = [Element("document", {})]
        self.feed(text)
        self.close()
        assert len(self.open) == 1, [element.tag for element in self.open]

    def handle_starttag(self, tag: str, attributes: list) -> None:
        element = Element(tag, dict(attributes))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(text: str) -> Element:
    return Reader(text).open[0]


def section(document: Element, name: str) -> Element:
    [found] = document.all("section", id=name)
    return found


def cells(table: Element) -> list[list[str]]:
    return [[child.text.strip() for child in row.children if isinstance(child, Element)] for row in table.all("tr")]


def embedded(document: Element) -> list:
    [script] = document.all("script", type="application/json")
    return json.loads(script.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets with trees, one of them with hostile names."""
    root = tmp_path_factory.mktemp("page")
    write_trees(write_run(root / "runs" / "a", dataset="gsm8k"))
    write_trees(write_run(root / "runs" / "b", dataset=f"mt_bench {MARKUP}", busy=True, differs=1), prompts=1)
    return root


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return page(load_runs(folder / "runs"), folder / "report.html")


@pytest.fixture(scope="module")
def document(text: str) -> Element:
    return read(text)


def test_the_headline_table_holds_the_numbers_of_the_main_table(folder: Path, document: Element) -> None:
    frame = main_table(load_runs(folder / "runs"))
    [table] = section(document, "results").all("table")
    heads, names, target, *rows = cells(table)
    datasets = list(frame.columns.unique(0))
    assert heads == ["", *datasets]
    assert names == ["method", *["speedup [95\N{NO-BREAK SPACE}%\N{NO-BREAK SPACE}CI]", "MAT", "η"] * len(datasets)]
    assert target == ["smollm2-135m"]
    expected = []
    for (_, method), row in frame.iterrows():
        texts = [method]
        for dataset in datasets:
            own = row[dataset]
            texts += [
                speedup_text(own["speedup"], own["ci_low"], own["ci_high"]),
                number(own["mat"]),
                number(own["eta"]),
            ]
        expected.append(texts)
    assert rows == expected
    assert rows[3][:4] == ["TALON_x 50% & more", "2.00 [2.00, 2.00]", "2.00", "2.00"], (
        "40 ms against AR's 80, 8 tokens in 4 rounds"
    )
    best = [strong.text for strong in table.all("strong")]
    assert best == ["2.00 [2.00, 2.00]"] * len(datasets)
    assert "†: not lossless, never marked best." in section(document, "results").text


def test_further_tables_hold_the_numbers_of_the_draft_efficiency(folder: Path, document: Element) -> None:
    frame = efficiency_table(load_runs(folder / "runs"))
    text = efficiency_text(frame).drop(columns=["target", "dataset"]).astype(str)
    expected = []
    for (target, dataset), rows in text.groupby([frame["target"], frame["dataset"]]):
        expected += [[f"{target} / {dataset}"], *rows.to_numpy().tolist()]
    efficiency, detail = section(document, "tables").all("table")
    assert cells(efficiency)[1:] == expected
    assert len(cells(detail)) == 1 + 2 * (1 + len(MS))


def test_a_sweep_has_its_table(tmp_path: Path) -> None:
    ms = {"ar": AR_MS, "talon[alpha=0.1]": FAST_MS, "talon[alpha=0.3]": [20.0] * 6}
    settings = {
        name: {"policy": "talon", "head": "eagle3", "alpha": float(name[-4:-1]), "label": name} for name in list(ms)[1:]
    }
    table = content.tables([load_run(write_run(tmp_path / "run", ms, settings=settings))])[0]
    assert table.caption == "Effect of alpha"
    [(target, rows)] = table.groups
    assert target == "smollm2-135m"
    assert [[cell.text for cell in row] for row in rows] == [
        ["0.1", "2.00 [2.00, 2.00]", "2.00", "2.00"],
        ["0.3", "4.00 [4.00, 4.00]", "2.00", "2.00"],
    ]
    assert [row[1].best for row in rows] == [False, True]


def test_the_page_needs_nothing_else(text: str, document: Element) -> None:
    sources = [
        own for element in _walk(document) for name, own in element.attributes.items() if name in ("src", "href")
    ]
    assert {re.match(r"data:image/|#|runs/", source) is not None for source in sources} == {True}
    assert not re.search(r"https?://|url\(|@import|@font-face|import\(|fetch\(|XMLHttp", text)
    assert not document.all("link")
    assert not document.all("iframe")
    images = document.all("img")
    assert len(images) == len(document.all("figure")) >= 8
    for image in images:
        svg = base64.b64decode(image.attributes["src"].removeprefix("data:image/svg+xml;base64,")).decode()
        assert svg.startswith("<?xml")
        assert not re.findall(r'(?:xlink:)?href="(?!#|data:)', svg), "a figure refers to itself only"


def test_the_security_policy_allows_the_pages_own_script_and_style_only(document: Element) -> None:
    [meta] = document.all("meta", **{"http-equiv": "Content-Security-Policy"})
    [style], [script] = document.all("style"), document.all("script", type="module")
    digests = [base64.b64encode(hashlib.sha256(part.text.encode()).digest()).decode() for part in (style, script)]
    assert meta.attributes["content"] == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'"
    )
    assert len(document.all("script")) == 2, "the other one is data, which nothing executes"
    assert "innerHTML" not in script.text
    assert not document.all("div", style="")
    everything = (
        document.all("p") + document.all("td") + document.all("svg") + document.all("div") + document.all("option")
    )
    assert not any(name == "style" or name.startswith("on") for element in everything for name in element.attributes)


def test_texts_from_the_records_never_become_markup(text: str, document: Element) -> None:
    assert MARKUP not in text
    assert HOSTILE not in text
    assert CLOSING not in text
    assert not document.all("b")
    assert f"mt_bench {MARKUP}" in section(document, "results").text
    data = embedded(document)
    assert {HOSTILE, CLOSING} < set(data[0]["pieces"])
    assert data[1]["name"] == f"smollm2-135m / mt_bench {MARKUP}"


def test_the_explorers_data_are_the_records(folder: Path, document: Element) -> None:
    runs = load_runs(folder / "runs")
    data = embedded(document)
    assert [entry["key"] for entry in data] == ["a", "b"]
    for run, entry in zip(runs, data, strict=True):
        answers = load_trees(run)
        assert [(own["prompt"], own["turn"], own["method"]) for own in entry["answers"]] == list(answers)
        assert entry["methods"] == {name: run.labels[name] for name in ("eagle3", "talon", "medusa")}
        for own, trees in zip(entry["answers"], answers.values(), strict=True):
            for drawn, tree in zip(own["rounds"], trees, strict=True):
                assert [entry["pieces"][token] for token in drawn["tokens"]] == tree.pieces
                assert (drawn["depths"], drawn["accepted"]) == (tree.depths, tree.accepted)
                assert (drawn["emitted"], drawn["passes"]) == (tree.emitted, tree.draft_passes)
                known = [place for place in range(len(tree.pieces)) if place != tree.own]
                assert drawn["probabilities"][tree.own] is None
                shares = ([values[place] for place in known] for values in (drawn["probabilities"], tree.probabilities))
                assert next(shares) == pytest.approx(next(shares), rel=5e-3)
    assert "3 prompts, 36 draft trees" in section(document, "explorer").text


def test_without_trees_a_sentence_says_how_to_record_them(tmp_path: Path) -> None:
    text = page([load_run(write_run(tmp_path / "run"))], tmp_path / "report.html")
    document = read(text)
    assert "kept no draft trees; run.trees=2 records those" in section(document, "explorer").text
    assert not document.all("script")
    assert not document.all("form")


def test_provenance_tells_what_runs_share_and_what_they_do_not(document: Element) -> None:
    part = section(document, "provenance")
    shared = dict(zip([dt.text for dt in part.all("dt")], [dd.text for dd in part.all("dd")], strict=True))
    assert shared["eagle3 head sha256"] == "ab" * 32
    assert shared["hardware"] == "Test CPU, 4 cores, 2 threads"
    assert shared["commit"] == "0123456789abcdef"
    assert shared["versions"] == "talon_bench 0.1.0, python 3.11.9, torch 2.13.0, transformers 5.24.0"
    [table] = part.all("table")
    heads, *rows = cells(table)
    assert heads == ["", "a", "b"]
    assert [row[0] for row in rows] == ["data set", "machine"]
    assert rows[1][1:] == ["quiet (load 0.2 before, 5.5 after)", "busy, times are suspect (load 0.2 before, 5.5 after)"]


def test_definitions_are_those_of_the_tables(document: Element) -> None:
    part = section(document, "definitions")
    joined = [f"{dt.text}: {dd.text}" for dt, dd in zip(part.all("dt"), part.all("dd"), strict=True)]
    assert joined == list(DEFINITIONS)
    [headline] = [figure for figure in document.all("figure") if figure.attributes["id"] == "figure-speedup"]
    assert "n = 6 prompts" in headline.text
    assert DEFINITIONS[0] not in headline.text, "captions do not repeat them"


def test_raw_files_are_linked_where_they_lie_near(folder: Path, document: Element, tmp_path: Path) -> None:
    links = [link.attributes["href"] for link in section(document, "raw").all("a")]
    assert links[:4] == [f"runs/a/{name}" for name in ("run.json", "turns.parquet", "rounds.parquet", "trees.parquet")]
    assert len(links) == 8
    assert all((folder / link).is_file() for link in links)
    far = content.raw_files(load_runs(folder / "runs"), tmp_path / "far" / "report.html")
    assert [entry["run"] for entry in far] == ["a", "b"]
    assert {link for entry in far for _, link in entry["files"]} == {None}


def test_raw_files_of_the_current_folder_are_linked_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    [entry] = content.raw_files([load_run(Path("runs/a"))], Path("local/report.html"))
    assert entry["files"][0] == ("run.json", "../runs/a/run.json")


def test_the_outline_has_no_gaps_and_every_reference_a_target(document: Element) -> None:
    headings = [int(element.tag[1]) for element in _walk(document) if re.fullmatch(r"h\d", element.tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    names = [element.attributes["id"] for element in _walk(document) if "id" in element.attributes]
    assert len(names) == len(set(names))
    wanted = [
        element.attributes["aria-labelledby"] for element in _walk(document) if "aria-labelledby" in element.attributes
    ]
    wanted += [link.attributes["href"][1:] for link in document.all("a") if link.attributes["href"].startswith("#")]
    assert set(wanted) <= set(names)


def _walk(element: Element) -> list[Element]:
    below = [child for child in element.children if isinstance(child, Element)]
    return [element, *(other for child in below for other in _walk(child))]


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_and_marks_have_contrast(theme: int) -> None:
    style = files(page_package).joinpath("page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[theme]))
    assert len(colours) == 11
    grounds = ("ground", "raised", "accepted-fill", "own-fill")
    for text in ("ink", "soft"):
        assert all(_contrast(colours[text], colours[ground]) >= 4.5 for ground in grounds), text
    assert all(_contrast(colours["link"], colours[ground]) >= 4.5 for ground in ("ground", "raised"))
    assert all(_contrast(colours[mark], colours["ground"]) >= 3 for mark in ("accepted", "own", "edge"))


def test_the_command_writes_the_same_page_again_and_names_it(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "report.html"
    assert report.main([str(folder / "runs"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_text(encoding="utf-8") == text, "equal records, an equal page"
    assert str(folder) not in text


def test_errors_of_the_user_are_one_line_and_status_2(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(tmp_path), "--out", str(tmp_path / "report.html")]) == 2
    assert "no run.json at or below" in capsys.readouterr().err
    monkeypatch.setattr(page_package, "page", lambda *_: "a page")
    (tmp_path / "file").touch()
    assert report.main([str(folder / "runs" / "a"), "--out", str(tmp_path / "file" / "report.html")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("give another file, --out FILE")


def test_runs_with_one_folder_name_have_keys_and_names_of_their_own(tmp_path: Path) -> None:
    """The address of a round finds its run, and the choice of runs shows no text twice."""
    for root in ("one", "two"):
        write_trees(write_run(tmp_path / root / "run", PLAIN_PAIR))
    sweep = {"ar": AR_MS, "talon[alpha=0.1]": FAST_MS}
    write_trees(write_run(tmp_path / "variants", sweep, settings={"talon[alpha=0.1]": {"alpha": 0.1}}))
    runs = load_runs(tmp_path)
    data = explorer_data(runs)
    assert [entry["key"] for entry in data] == ["run", "run (2)", "variants"]
    assert [entry["name"] for entry in data] == [
        "smollm2-135m [run] / gsm8k",
        "smollm2-135m [run (2)] / gsm8k",
        "smollm2-135m / gsm8k, talon by alpha",
    ]
    assert content.provenance(runs)["runs"] == ["run", "run (2)", "variants"]
    assert [entry["run"] for entry in content.raw_files(runs, tmp_path / "report.html")] == [
        "run",
        "run (2)",
        "variants",
    ]


def test_runs_with_methods_to_compare_come_first_in_the_explorer(tmp_path: Path) -> None:
    for name, methods in (("a", PLAIN_PAIR), ("b", PLAIN_PAIR | {"eagle3": [25.0] * 6}), ("c", PLAIN_PAIR)):
        write_trees(write_run(tmp_path / name, methods, temperature=ord(name) / 100))
    assert [entry["key"] for entry in explorer_data(load_runs(tmp_path))] == ["b", "a", "c"]


def test_sweeps_of_two_methods_have_names_of_their_own_in_the_explorer(tmp_path: Path) -> None:
    for base in ("talon", "talon_small"):
        name = f"{base}[alpha=0.1]"
        folder = write_run(tmp_path / base, {"ar": AR_MS, name: FAST_MS}, settings={name: {"alpha": 0.1}})
        write_trees(folder)
    names = [entry["name"] for entry in explorer_data(load_runs(tmp_path))]
    assert names == [f"smollm2-135m / gsm8k, {base} by alpha" for base in ("talon", "talon_small")]


def test_the_summary_counts_each_prompt_once_and_no_plain_pass(tmp_path: Path) -> None:
    """EAGLE-3, TALON and Medusa verify four times a prompt, six prompts a run; AR's eight passes are none."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", temperature=1.0)
    assert content.summary(load_runs(tmp_path)) == "2 runs, 5 methods, 1 data set: 6 prompts, 144 verifications."
    write_run(tmp_path / "c", dataset="qa")
    assert content.summary(load_runs(tmp_path)) == "3 runs, 5 methods, 2 data sets: 12 prompts, 216 verifications."
    write_run(tmp_path / "one", {"ar": [80.0], "talon": [40.0]})
    single = content.summary([load_run(tmp_path / "one")])
    assert single == "1 run, 2 methods, 1 data set: 1 prompt, 4 verifications."


def test_sweeps_stand_beside_line_ups_without_their_folders(tmp_path: Path) -> None:
    """Rows in a row that share target and data set are one group of a table; the line-up's and the sweep's are two."""
    for dataset in ("gsm8k", "qa"):
        write_run(tmp_path / f"plain-{dataset}", PLAIN_PAIR, dataset=dataset)
    sweep = {"ar": AR_MS, "talon[alpha=0.1]": FAST_MS}
    write_run(tmp_path / "sweep", sweep, settings={"talon[alpha=0.1]": {"alpha": 0.1}})
    [efficiency] = [table for table in content.tables(load_runs(tmp_path)) if table.caption == "Draft efficiency"]
    assert [(heading, len(rows)) for heading, rows in efficiency.groups] == [
        ("smollm2-135m / gsm8k", 1),
        ("smollm2-135m / qa", 1),
        ("smollm2-135m / gsm8k", 1),
    ]
