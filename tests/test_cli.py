"""The command line: forms of a request, the last line, exit statuses, and one clear line for every bad request."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ToyFolders
from talon_bench import atomic
from talon_bench.bench import Bench
from talon_bench.report.load import load_run, load_runs
from toy_runs import QUESTIONS, CommandLine, rows, toy_overrides

KEYS = ["mat", "eta", "tokens_per_second", "speedup", "speedup_ci95", "turns", "lossless", "overhead_share"]
PROGRAM = [sys.executable, "-m", "talon_bench"]


@pytest.fixture
def cli(
    toy_folders: ToyFolders,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> CommandLine:
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], None]) -> None:
    """`action` happens when prompt `number` is about to be measured."""
    real = Bench.measure

    def measure(self: Bench, at: int, *rest: object, **options: object):
        if at == number:
            action()
        return real(self, at, *rest, **options)

    monkeypatch.setattr(Bench, "measure", measure)


def test_a_run_ends_with_one_line_of_the_documented_form(cli: CommandLine) -> None:
    result = cli("lineup=lossless", "dataset.limit=2")
    assert (result.status, result.notes) == (0, [])
    assert result.err.startswith(
        "toy (float32, 1 CPU threads) x gsm8k (local): 9 methods, 2 of 4 prompts, up to 12 new"
    )
    last = result.last
    assert list(last) == ["schema", "run_dir", "target", "head", "dataset", "methods"]
    assert (last["schema"], last["target"], last["dataset"]) == (1, "toy", "gsm8k")
    assert last["head"] == "local-eagle2+local-eagle3"
    assert list(last["methods"]) == [
        *("ar", "lookup", "chain", "eagle1", "eagle2", "talon_eagle2", "eagle3", "talon", "talon_small"),
    ]
    for name, entry in last["methods"].items():
        assert list(entry) == KEYS
        assert (entry["turns"], entry["lossless"]) == (2, True)
        low, high = entry["speedup_ci95"]
        assert low <= entry["speedup"] <= high
        assert 1 <= entry["mat"] < 7
        assert (entry["eta"] == 0) == (name in {"ar", "lookup"})
        assert 0 < entry["overhead_share"] < 1
        assert entry["tokens_per_second"] > 0
    assert last["methods"]["ar"]["speedup"] == last["methods"]["ar"]["mat"] == 1
    run = load_run(result.folder)
    assert len(run.turns) == 2 * 9
    assert [summary.mat for summary in run.summaries.values()] == [entry["mat"] for entry in last["methods"].values()]
    table = result.out.splitlines()[:-1]
    assert any("TALON (6 nodes)" in line for line in table)
    assert max(map(len, table)) <= 100


def test_the_same_command_again_reports_and_fresh_measures_again(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cli("dataset.limit=1")
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "measure", lambda *_: pytest.fail("measured again"))
        again = cli("dataset.limit=1")
    assert again.status == 0
    assert again.err == f"{first.folder} is complete; run.fresh=true measures it again\n"
    assert again.out == first.out
    fresh = cli("dataset.limit=1", "run.fresh=true")
    assert fresh.folder == first.folder
    assert fresh.last["methods"]["ar"]["tokens_per_second"] != first.last["methods"]["ar"]["tokens_per_second"]


def test_multirun_makes_one_run_per_value(cli: CommandLine, tmp_path: Path) -> None:
    result = cli("-m", "lineup=baseline", "dataset.limit=1", "method.alpha=0.01,0.03")
    assert result.status == 0
    found = load_runs(tmp_path / "runs")
    assert {run.info["methods"]["talon_small"]["alpha"] for run in found} == {0.01, 0.03}
    lines = [json.loads(line) for line in result.out.splitlines() if line.startswith("{")]
    assert [Path(line["run_dir"]).is_dir() for line in lines] == [True, True]


def test_one_bad_job_of_a_multirun_does_not_stop_the_others(cli: CommandLine, tmp_path: Path) -> None:
    result = cli("-m", "lineup=baseline", "dataset.limit=1", "method.alpha=1.5,0.03,0")
    assert result.status == 2
    assert result.notes == [
        "error: method talon_small: alpha is 1.5; expected a value in (0, 1]",
        "error: method talon_small: alpha is 0.0; expected a value in (0, 1]",
    ]
    assert [run.info["methods"]["talon_small"]["alpha"] for run in load_runs(tmp_path / "runs")] == [0.03]


def test_a_sweep_measures_its_variants_side_by_side(cli: CommandLine) -> None:
    result = cli("+sweep=alpha", "sweep.values=[0.01,0.5]", "lineup=baseline", "dataset.limit=1")
    assert result.status == 0
    assert list(result.last["methods"]) == ["ar", "talon_small[alpha=0.01]", "talon_small[alpha=0.5]"]


def test_an_experiment_sets_its_lineup_and_yields_to_the_command_line(cli: CommandLine) -> None:
    cli.base = [override for override in cli.base if not override.startswith(("lineup", "method"))]
    result = cli("+experiment=smoke", "dataset.limit=1")
    assert result.status == 0
    assert list(result.last["methods"]) == ["ar", "eagle3_small", "talon_small"]
    assert result.folder.name.startswith("toy-gsm8k-smoke-")


def test_an_experiment_with_a_grid_runs_all_of_it(cli: CommandLine, tmp_path: Path) -> None:
    """Through Hydra's own MULTIRUN mode, with no -m; the command line replaces the grid's data sets and line-up."""
    result = cli("+experiment=lossless", "dataset=gsm8k,mt_bench", "dataset.limit=1", "decode.max_new_tokens=6")
    assert (result.status, result.notes) == (0, [])
    found = {run.dataset: list(run.methods) for run in load_runs(tmp_path / "runs")}
    assert set(found) == {"gsm8k", "mt_bench"}
    assert found["gsm8k"] == found["mt_bench"] == ["ar", "eagle3_small", "talon_small"]


def test_sampling_repeats_with_the_seed(cli: CommandLine) -> None:
    def ids(*overrides: str) -> list[list[int]]:
        result = cli("decode.temperature=1", "dataset=mt_bench", "dataset.limit=2", *overrides)
        assert result.status == 0
        assert {entry["lossless"] for entry in result.last["methods"].values()} == {None}
        return [row["output_ids"] for row in rows(result.folder, "turns")]

    first = ids()
    assert ids("run.fresh=true") == first
    assert ids("decode.seed=1") != first


def test_prompts_beyond_the_window_are_counted_and_no_error(cli: CommandLine, toy_folders: ToyFolders) -> None:
    lengths = sorted({row["prompt_tokens"] for row in rows(cli("lineup=baseline").folder, "turns")})
    window = lengths[1] + 12 + 6
    target = toy_folders.target("llama", max_position_embeddings=window)
    result = cli(f"target.path='{target}'")
    assert result.status == 0
    found = rows(result.folder, "turns")
    skipped = {row["prompt_id"] for row in found if row["status"] == "skipped"}
    assert len(skipped) == len(QUESTIONS) - 2
    for prompt in skipped:
        assert [row["status"] for row in found if row["prompt_id"] == prompt] == ["skipped"] * 3
    assert {entry["turns"] for entry in result.last["methods"].values()} == {len(QUESTIONS) - len(skipped)}
    assert f"ar: 0 failed, {len(skipped)} skipped" in " ".join(result.out.split())
    errors = {row["error"] for row in found if row["status"] == "skipped"}
    assert all(f"the target's window is {window}" in error for error in errors)


def test_a_failing_method_gives_status_1_and_one_line(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, draft: object) -> None:
        raise RuntimeError("no tree\nat all")

    monkeypatch.setattr("talon_bench.policies.talon.Talon.grow", broken)
    result = cli("dataset.limit=2")
    assert result.status == 1
    assert result.notes == [
        "fault: 2 answers failed; the first: method talon_small, prompt gsm8k-0000: RuntimeError: no tree at all"
    ]
    assert result.err.splitlines()[-1] == result.notes[0]
    assert result.last["methods"]["eagle3_small"]["turns"] == 2
    assert cli("dataset.limit=2").status == 1, "a report of the same run says the same"


def test_answers_that_are_not_ars_give_status_1(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Bench._answer

    def wrong(self: Bench, drafter, *rest: object):
        row, entries = real(self, drafter, *rest)
        if drafter.budget > 1:
            row["output_ids"] = [(token + 7) % 90 + 5 for token in row["output_ids"]]
        return row, entries

    monkeypatch.setattr(Bench, "_answer", wrong)
    result = cli("dataset.limit=1")
    assert result.status == 1
    assert len(result.notes) == 1
    assert result.notes[0].startswith("fault: 2 answers differ from AR beyond float32 rounding (margin bound 0.01);")


def test_ctrl_c_keeps_what_was_measured(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        result = cli()
    assert result.status == 130
    assert result.notes == ["interrupted; what was measured is kept, the same command without run.fresh resumes it"]
    assert "Traceback" not in result.err
    assert not [line for line in result.out.splitlines() if line.startswith("{")]
    measured = []
    real = Bench.measure
    monkeypatch.setattr(
        Bench, "measure", lambda self, at, *rest, **options: measured.append(at) or real(self, at, *rest, **options)
    )
    resumed = cli()
    assert (resumed.status, measured) == (0, [2, 3])
    assert "2 of 4 prompts" in resumed.err
    assert resumed.last["methods"]["ar"]["turns"] == 4


@pytest.mark.parametrize("place", ["write", "replace"])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_full_disk_is_one_line_and_the_run_resumes(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, place: str, at: int
) -> None:
    """`at` counts writes of files: run.json, then two per prompt, then both tables and run.json again."""
    writes = []

    def full(file: Path, write: Callable[[Path], None]) -> None:
        writes.append(file.name)
        part = file.with_name(f".{file.name}.part")
        if len(writes) == at + 1:
            part.write_bytes(b"PAR1" if place == "write" else b"")
            if place == "replace":
                write(part)
            raise OSError(errno.ENOSPC, "No space left on device", str(part))
        real(file, write)

    real = atomic.replace
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replace", full)
        result = cli("run.trees=0")
    assert result.status == 1
    assert len(result.notes) == 1
    assert result.notes[0].startswith("error: [Errno 28] No space left on device: ")
    assert result.notes[0].endswith("what was measured is kept, the same command without run.fresh resumes it")
    assert "Traceback" not in result.err
    measured = []
    measure = Bench.measure
    monkeypatch.setattr(
        Bench, "measure", lambda self, at, *rest, **options: measured.append(at) or measure(self, at, *rest, **options)
    )
    resumed = cli("run.trees=0")
    assert resumed.status == 0
    assert measured == list(range(max(at - 1, 0) // 2, 4))
    assert load_run(resumed.folder).summaries["talon_small"].turns == 4
    assert sorted(file.name for file in resumed.folder.iterdir()) == [
        *(".lock", "rounds.parquet", "run.json", "turns.parquet"),
    ]


def program(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess:
    return subprocess.run([*PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["+method.foo=1"], "error: unknown key method.foo; expected one of alpha"),
        (["method.alpha=1.5"], "error: method talon: alpha is 1.5; expected a value in (0, 1]"),
    ],
)
def test_the_program_refuses_a_bad_request_before_it_loads_anything(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = program(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_the_program_stops_on_ctrl_c_and_resumes(cli: CommandLine, tmp_path: Path) -> None:
    """The same request is ended by SIGINT in a process of its own and completed in this one."""
    request = [*cli.base, "dataset.limit=3", "decode.max_new_tokens=200", f"run.dir='{tmp_path / 'here'}'"]
    running = subprocess.Popen(
        [*PROGRAM, *request],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 100
    while not list((tmp_path / "here").glob("parts/*.turns.parquet")):
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert err.splitlines()[-1].startswith("interrupted; what was measured is kept")
    assert "Traceback" not in err
    assert "{" not in out
    kept = len(list((tmp_path / "here" / "parts").glob("*.turns.parquet")))
    assert 1 <= kept < 3
    cli.base = request
    resumed = cli()
    assert resumed.status == 0
    assert f"{3 - kept} of 4 prompts" in resumed.err
    assert {entry["lossless"] for entry in resumed.last["methods"].values()} == {True}
