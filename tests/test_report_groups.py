"""Row headings: which runs share one, what tells the others apart, and that no run takes another's cells."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from figure_runs import HALF, PLAIN, TALON, make_run
from run_records import AR_MS, FAST_MS, LABELS, SLOW_MS, write_run
from talon_bench.report.groups import folder_names, row_groups
from talon_bench.report.load import RunData, load_run, load_runs
from talon_bench.report.tables import detail_table, main_table

PAIR = {"ar": AR_MS, "talon": FAST_MS}
SAMPLED = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64, "seed": 0}
HEAD = {"name": "toy-eagle3", "sha256": "ab" * 32}
FACTS = {"sha256": "cd" * 32, "engine": "stock"}


def talon(**own: object) -> dict:
    return {"settings": {"talon": own}}


def test_runs_with_one_folder_name_keep_rows_of_their_own(tmp_path: Path) -> None:
    """The same run measured again under another root has the same folder name."""
    for root, ms in (("one", FAST_MS), ("two", SLOW_MS)):
        write_run(tmp_path / root / "run", {"ar": AR_MS, "talon": ms})
    runs = load_runs(tmp_path)
    assert row_groups(runs) == ["smollm2-135m [run]", "smollm2-135m [run (2)]"]
    assert main_table(runs)["gsm8k", "speedup"].tolist() == pytest.approx([1, 2, 1, 1.6])
    assert detail_table(runs)["run"].tolist() == ["run", "run", "run (2)", "run (2)"]


@given(st.lists(st.sampled_from(["a", "a (2)", "a (2) (2)", "b"]), max_size=6))
def test_folder_names_are_unique(names: list[str]) -> None:
    runs = [SimpleNamespace(path=Path(f"/{place}/{name}")) for place, name in enumerate(names)]
    found = folder_names(runs)
    assert len(set(found)) == len(found)
    assert all(text.startswith(name) for text, name in zip(found, names, strict=True))
    if len(set(names)) == len(names):
        assert found == names


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "here", PAIR)
    monkeypatch.chdir(tmp_path / "here")
    assert set(detail_table([load_run(Path())])["run"]) == {"here"}
    assert row_groups([load_run(Path()), load_run(tmp_path / "here")])[0] == "smollm2-135m [here]"


@pytest.mark.parametrize(
    ("kinds", "tagged"),
    [
        (None, True),
        ([("talon",), ("talon",)], True),
        ([("talon", "eagle3"), ("eagle3",)], True),
        ([("talon",), ("eagle3",)], False),
        ([(), ()], False),
    ],
)
def test_runs_share_a_heading_where_they_have_no_row_in_common(kinds: list | None, tagged: bool) -> None:
    runs = [make_run({"ar": {"a": [PLAIN]}}, path=name) for name in ("one", "two")]
    assert row_groups(runs, kinds) == (["toy [one]", "toy [two]"] if tagged else ["toy", "toy"])


@pytest.mark.parametrize(
    ("one", "two", "texts"),
    [
        ({"decode": SAMPLED}, {"decode": SAMPLED | {"top_p": 0.9}}, ("top-p 1", "top-p 0.9")),
        ({"decode": SAMPLED}, {"decode": SAMPLED | {"top_k": 50}}, ("top-k 0", "top-k 50")),
        (
            {"heads": {"eagle3": HEAD}},
            {"heads": {"eagle3": HEAD | {"sha256": "ef" * 32}}},
            ("eagle3 head abababab", "eagle3 head efefefef"),
        ),
        (
            {"checkpoint": FACTS},
            {"checkpoint": FACTS | {"sha256": "01" * 32}},
            ("target cdcdcdcd", "target 01010101"),
        ),
        ({"checkpoint": FACTS}, {"checkpoint": FACTS | {"engine": "fused"}}, ("stock engine", "fused engine")),
        (talon(alpha=0.03), talon(alpha=0.1), (f"{LABELS['talon']} alpha 0.03", f"{LABELS['talon']} alpha 0.1")),
        (talon(), talon(head="eagle2"), (f"{LABELS['talon']} head eagle3", f"{LABELS['talon']} head eagle2")),
        (talon(), talon(policy="eagle"), (f"{LABELS['talon']} policy talon", f"{LABELS['talon']} policy eagle")),
    ],
)
def test_what_changes_a_measurement_tells_runs_apart(tmp_path: Path, one: dict, two: dict, texts: tuple) -> None:
    """Two runs that differ in it have no row and no mean in common, though their data sets differ."""
    for dataset, info in (("gsm8k", one), ("qa", two)):
        write_run(tmp_path / dataset, PAIR, dataset=dataset, **info)
    runs = load_runs(tmp_path)
    assert row_groups(runs) == [f"smollm2-135m ({text})" for text in texts]
    frame = main_table(runs)
    assert len(frame) == 4
    assert frame["mean"]["speedup"].isna().all()


def test_static_trees_are_told_apart_by_their_hash(tmp_path: Path) -> None:
    for dataset, tree in (("gsm8k", [[0], [1]]), ("qa", [[0], [0, 0]]), ("alpaca", [[0], [1]])):
        write_run(tmp_path / dataset, PAIR, dataset=dataset, **talon(policy="static", tree=tree))
    alpaca, gsm8k, qa = row_groups(load_runs(tmp_path))
    assert alpaca == gsm8k != qa
    assert re.fullmatch(rf"smollm2-135m \({re.escape(LABELS['talon'])} tree [0-9a-f]{{8}}\)", qa)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({}, {"decode": SAMPLED | {"temperature": 0.0, "top_p": 0.9}}),
        ({}, {"heads": {"eagle2": HEAD | {"sha256": "ef" * 32}}}),
        ({"checkpoint": FACTS}, {"checkpoint": {"sha256": None, "engine": None}}),
        ({}, talon(label="TALON of another name", alpha=0.1)),
        ({}, {"provenance": {"cpu": "Test CPU", "threads": 2, "dtype": "float32", "busy": True, "torch": "2"}}),
    ],
)
def test_what_two_runs_do_not_share_tells_nothing(tmp_path: Path, one: dict, two: dict) -> None:
    for dataset, info in (("gsm8k", one), ("qa", two)):
        write_run(tmp_path / dataset, PAIR, dataset=dataset, **info)
    assert row_groups(load_runs(tmp_path)) == ["smollm2-135m"] * 2


def test_sweeps_are_told_apart_by_what_they_do_not_sweep() -> None:
    def sweep(budget: int, *alphas: float) -> RunData:
        settings = {f"talon[alpha={alpha}]": TALON | {"budget": budget, "alpha": alpha} for alpha in alphas}
        for name, own in settings.items():
            own["label"] = name
        return make_run({"ar": {"a": [PLAIN]}} | {name: {"a": [HALF]} for name in settings}, settings)

    assert row_groups([sweep(6, 0.1, 0.3), sweep(16, 0.1)]) == ["toy (talon budget 6)", "toy (talon budget 16)"]
    assert row_groups([sweep(6, 0.1), sweep(6, 0.3)], [("talon",), ("other",)]) == ["toy", "toy"]


def test_a_setting_tells_targets_apart_one_by_one(tmp_path: Path) -> None:
    """What differs between the runs of one target is no matter of another."""
    for name, target, alpha in (("a", "one", 0.03), ("b", "one", 0.1), ("c", "two", 0.5)):
        write_run(tmp_path / name, PAIR, target=target, dataset=name, **talon(alpha=alpha))
    label = LABELS["talon"]
    assert row_groups(load_runs(tmp_path)) == [f"one ({label} alpha 0.03)", f"one ({label} alpha 0.1)", "two"]
