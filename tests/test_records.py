"""The run folder: what is on disk at each moment, who may write, what is refused, what survives a failure."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from talon_bench import atomic, records
from talon_bench.errors import UsageError
from talon_bench.records import ROUNDS, TREES, TURNS, RunFolder

INFO = {"identity": "abc", "target": "toy", "provenance": {"started": "now", "load_before": 0.5}}


def turn(prompt: str, method: str = "ar", **values: object) -> dict:
    return {"prompt_id": prompt, "turn": 0, "method": method, "output_ids": [5, 6], "new_tokens": 2, **values}


def one_round(prompt: str, method: str = "ar") -> dict:
    return {"prompt_id": prompt, "turn": 0, "method": method, "round": 0, "emitted": 1, "widths": [], "path_ranks": []}


def begun(path: Path, **options: bool) -> RunFolder:
    folder = RunFolder(path, "abc", **options)
    folder.begin(INFO)
    return folder


def finished(path: Path) -> None:
    folder = begun(path)
    folder.add(0, [turn("p0")], [one_round("p0")])
    folder.finish(provenance={"finished": "later"})
    folder.close()


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.name != ".lock")


def test_trees_of_some_prompts_become_a_third_table(tmp_path: Path) -> None:
    tree = {
        "prompt_id": "p1",
        "method": "ar",
        "tokens": [5],
        "pieces": ["a"],
        "parents": [-1],
        "scores": [0.0],
        "path": [0],
    }
    folder = begun(tmp_path)
    folder.add(1, [turn("p1")], [one_round("p1")], [tree])
    folder.add(0, [turn("p0")], [one_round("p0")])
    folder.finish()
    found = pq.read_table(tmp_path / "trees.parquet")
    assert found.schema.equals(TREES)
    assert found.column("prompt_id").to_pylist() == ["p1"]
    assert found.column("pieces").to_pylist() == [["a"]]
    folder.close()
    again = begun(tmp_path, fresh=True)
    assert files(tmp_path) == ["run.json"], "an older run's trees go with its rows"
    again.close()


def test_a_run_folder_from_first_row_to_complete(tmp_path: Path) -> None:
    folder = begun(tmp_path / "runs" / "a")
    assert (folder.complete, folder.done()) == (False, set())
    assert json.loads((folder.path / "run.json").read_text()) == {"schema": 1, "status": "running", **INFO}
    folder.add(1, [turn("p1")], [one_round("p1")])
    folder.add(0, [turn("p0", error=None), turn("p0", "talon", margin=0.5)], [one_round("p0")])
    assert folder.done() == {0, 1}
    assert files(folder.path) == [
        *(f"parts/{number:06d}.{kind}.parquet" for number in (0, 1) for kind in ("rounds", "turns")),
        "run.json",
    ]
    assert folder.rows()[0].column("prompt_id").to_pylist() == ["p0", "p0", "p1"]
    folder.finish(provenance={"finished": "later"}, windows={"head": 3})
    assert folder.complete
    assert files(folder.path) == ["rounds.parquet", "run.json", "turns.parquet"]
    info = json.loads((folder.path / "run.json").read_text())
    assert info == {
        "schema": 1,
        **INFO,
        "status": "complete",
        "windows": {"head": 3},
        "provenance": {"started": "now", "load_before": 0.5, "finished": "later"},
    }
    turns, rounds = pq.read_table(folder.path / "turns.parquet"), pq.read_table(folder.path / "rounds.parquet")
    assert turns.schema.equals(TURNS)
    assert rounds.schema.equals(ROUNDS)
    assert turns.column("prompt_id").to_pylist() == ["p0", "p0", "p1"]
    assert turns.column("margin").to_pylist() == [None, 0.5, None]
    assert rounds.column("prompt_id").to_pylist() == ["p0", "p1"]
    assert folder.rows()[0].equals(turns)


def test_a_resumed_run_keeps_its_rows_and_notes_the_session(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.add(0, [turn("p0")], [one_round("p0")])
    folder.close()
    again = RunFolder(tmp_path, "abc")
    assert (again.complete, again.done() if again.info else None) == (False, {0})
    again.begin({**INFO, "target": "not looked at", "provenance": {"started": "then"}})
    assert again.info["target"] == "toy"
    assert again.info["provenance"]["started"] == "now"
    assert json.loads((tmp_path / "run.json").read_text())["resumed"] == [{"started": "then"}]


@pytest.mark.parametrize("key", ["checkpoint", "heads"])
def test_a_run_begun_with_other_weights_is_not_resumed(tmp_path: Path, key: str) -> None:
    info = {**INFO, "checkpoint": {"sha256": "aa"}, "heads": {"eagle3": {"sha256": "bb", "feature_layers": (2, 4, 5)}}}
    RunFolder(tmp_path, "abc").begin(info)
    RunFolder(tmp_path, "abc").begin(info)
    with pytest.raises(UsageError, match=f"begun with other weights or settings of its {key}; set run.dir"):
        RunFolder(tmp_path, "abc").begin({**info, key: {"sha256": "cc"}})


def test_a_prompt_counts_as_done_only_with_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path)
    real = records.write_table

    def killed(table, file: Path) -> None:
        if file.name.endswith(".turns.parquet"):
            raise KeyboardInterrupt
        real(table, file)

    monkeypatch.setattr(records, "write_table", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.add(0, [turn("p0")], [one_round("p0")])
    assert files(tmp_path) == ["parts/000000.rounds.parquet", "run.json"]
    assert folder.done() == set()
    monkeypatch.undo()
    folder.add(0, [turn("p0")], [one_round("p0")])
    folder.finish()
    assert pq.read_table(tmp_path / "rounds.parquet").num_rows == 1


def test_files_are_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path)
    before = (tmp_path / "run.json").read_bytes()

    def half(part: Path, *_: object, **__: object) -> None:
        part.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        folder.begin(INFO)
    assert (tmp_path / "run.json").read_bytes() == before
    monkeypatch.undo()
    folder.begin(INFO)
    assert files(tmp_path) == ["run.json"]


@pytest.mark.parametrize("stop", range(3))
def test_finish_can_be_repeated_after_a_stop_at_any_of_its_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    folder = begun(tmp_path)
    folder.add(0, [turn("p0")], [one_round("p0")])
    real, calls = atomic.replace, []

    def stopping(file: Path, write: object) -> None:
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(file.name)
        real(file, write)

    monkeypatch.setattr(atomic, "replace", stopping)
    with pytest.raises(KeyboardInterrupt):
        folder.finish()
    folder.close()
    monkeypatch.undo()
    assert calls == ["turns.parquet", "rounds.parquet", "run.json"][:stop]
    again = RunFolder(tmp_path, "abc")
    assert (again.complete, again.done()) == (False, {0})
    again.begin(INFO)
    again.finish()
    assert files(tmp_path) == ["rounds.parquet", "run.json", "turns.parquet"]
    assert pq.read_table(tmp_path / "turns.parquet").column("prompt_id").to_pylist() == ["p0"]


def test_a_finished_run_is_not_touched_by_opening_it(tmp_path: Path) -> None:
    finished(tmp_path)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path)}
    folder = RunFolder(tmp_path, "abc")
    assert folder.complete
    folder.close()
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in files(tmp_path)} == before


def test_fresh_throws_away_what_was_there(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    RunFolder(tmp_path, "abc", fresh=True).close()
    assert RunFolder(tmp_path, "abc").complete, "a fresh run that does not begin throws nothing away"
    folder = begun(tmp_path, fresh=True)
    assert (folder.complete, folder.done()) == (False, set())
    assert files(tmp_path) == ["mine.txt", "run.json"]


def test_parts_that_outlived_their_run_json_are_not_taken_for_this_runs(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.add(0, [turn("of another run")], [])
    folder.close()
    (tmp_path / "run.json").unlink()
    folder = RunFolder(tmp_path, "another")
    folder.begin({**INFO, "identity": "another"})
    assert folder.done() == set()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"schema": 1', "run.json is damaged; set run.fresh=true"),
        (b"\xff\xfe\x00garbage", "run.json is damaged; set run.fresh=true"),
        (b"[1, 2]", "run.json is damaged; set run.fresh=true"),
        (b'{"schema": 2, "identity": "abc"}', "has schema 2, expected 1"),
        (b'{"schema": 1, "identity": "other"}', "holds a run of another configuration; set run.dir"),
    ],
)
def test_a_folder_that_cannot_be_continued_is_refused_unless_fresh(
    tmp_path: Path, content: bytes, message: str
) -> None:
    finished(tmp_path)
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match=message) as error:
        RunFolder(tmp_path, "abc")
    assert "\n" not in str(error.value)
    assert pq.read_table(tmp_path / "turns.parquet").num_rows == 1
    folder = begun(tmp_path, fresh=True)
    assert folder.done() == set()


def test_two_writers_never_meet_in_one_folder(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="is being written by another process; wait for it, or set"):
            RunFolder(tmp_path, "abc", fresh=True)
    folder = begun(tmp_path)
    with pytest.raises(UsageError, match="is being written by another process"):
        RunFolder(tmp_path, "abc")
    folder.close()
    RunFolder(tmp_path, "abc").close()


def test_a_folder_in_which_nothing_began_is_removed_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a", "abc")
    assert folder.path.is_dir()
    folder.close()
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("kept")
    RunFolder(tmp_path / "b", "abc").close()
    assert files(tmp_path) == ["b/mine.txt"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(UsageError, match=r"cannot be a run folder \(.*\); set run.root or run.dir"):
            RunFolder(path, "abc")


def test_a_value_of_the_wrong_type_is_refused_before_it_is_on_disk(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    with pytest.raises(pa.ArrowInvalid, match="tried to convert to int16"):
        folder.add(0, [turn("p0", turn="first")], [])
    assert folder.done() == set()


def test_every_column_is_documented() -> None:
    text = (Path(__file__).parents[1] / "docs" / "records.md").read_text(encoding="utf-8")
    first, second = text.index("## turns.parquet"), text.index("## rounds.parquet")
    for schema, section in ((TURNS, text[first:second]), (ROUNDS, text[second:])):
        documented = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
        assert [name for name in schema.names if f"`{name}`" not in documented] == []
