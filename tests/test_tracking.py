"""Tracking: absent unless asked for, complete in offline mode, and harmless whatever the service does."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import ToyFolders
from talon_bench.report.load import load_run
from talon_bench.tracking.null import NullTracker
from talon_bench.tracking.wandb import WandbTracker
from toy_runs import CommandLine, toy_overrides

OFFLINE = ("tracking=wandb", "tracking.mode=offline", "dataset.limit=2")


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))


class FakeRun:
    """Stands for a W&B run; `failing` names the method that raises."""

    def __init__(self, failing: str | None) -> None:
        self.failing = failing
        self.calls: list[str] = []
        self.logged: list[dict] = []
        self.summary: dict[str, object] = {}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise ConnectionError(f"{name} failed")

    def log(self, values: dict) -> None:
        self._called("log")
        self.logged.append(values)

    def log_artifact(self, artifact: object) -> None:
        self._called("log_artifact")

    def finish(self) -> None:
        self._called("finish")


class FakeArtifact:
    def __init__(self, name: str, type: str) -> None:
        self.name, self.files = name, []

    def add_file(self, file: str) -> None:
        assert Path(file).is_file()
        self.files.append(Path(file).name)


def fake_wandb(monkeypatch: pytest.MonkeyPatch, failing: str | None = None) -> tuple[FakeRun, dict]:
    """Put a stand-in in the place of wandb; the run it hands out and the arguments of `init`."""
    run, given = FakeRun(failing), {}

    def init(**options: object) -> FakeRun:
        if failing == "init":
            raise ConnectionError("init failed")
        given.update(options)
        return run

    def table(dataframe: object) -> tuple:
        return ("table", dataframe)

    module = SimpleNamespace(init=init, Settings=dict, Table=table, Artifact=FakeArtifact)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return run, given


def test_wandb_is_not_imported_unless_asked_for(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # makes an import fail
    assert cli("dataset.limit=1").status == 0
    assert cli("dataset.limit=1", "tracking=wandb", "tracking.mode=disabled", "run.fresh=true").status == 0
    missing = cli("dataset.limit=1", "tracking=wandb", "run.fresh=true")
    assert missing.status == 2
    assert missing.notes == ["error: tracking=wandb needs the package wandb: pip install 'talon-bench[wandb]'"]


def test_a_run_is_shown_live_and_with_its_results(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    run, given = fake_wandb(monkeypatch)
    result = cli(*OFFLINE, "tracking.project=mine")
    assert (result.status, result.notes) == (0, [])
    identity = load_run(result.folder).info["identity"]
    assert (given["project"], given["mode"], given["entity"]) == ("mine", "offline", None)
    assert (given["id"], given["resume"], given["group"]) == (identity[:16], "allow", identity[:8])
    assert (given["job_type"], given["name"], given["dir"]) == ("toy", result.folder.name, str(result.folder))
    assert given["config"]["methods"]["talon_small"]["budget"] == 6
    assert run.calls == ["log", "log", "log", "log_artifact", "finish"]
    assert [values["prompt"] for values in run.logged[:2]] == [0, 1]
    last = result.last["methods"]
    for name, entry in last.items():
        assert run.logged[1][f"{name}/mat"] == pytest.approx(entry["mat"])
        assert run.logged[1][f"{name}/tokens_per_second"] == pytest.approx(entry["tokens_per_second"])
        assert run.summary[f"{name}/speedup"] == entry["speedup"]
    assert run.logged[2]["results"][0] == "table"


def test_a_finished_run_is_reported_without_tracking_it_again(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = fake_wandb(monkeypatch)
    cli(*OFFLINE)
    before = list(run.calls)
    assert cli(*OFFLINE).status == 0
    assert run.calls == before


@pytest.mark.parametrize("failing", ["init", "log", "log_artifact", "finish"])
def test_a_failing_service_harms_nothing(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    run, _ = fake_wandb(monkeypatch, failing)
    result = cli(*OFFLINE)
    assert (result.status, result.notes) == (0, [])
    warnings = [line for line in result.err.splitlines() if line.startswith("warning: wandb")]
    assert len(warnings) == 1
    assert f"(ConnectionError: {failing} failed); the run goes on without it" in warnings[0]
    assert run.calls.count(failing) == (failing != "init"), "after a failure it is left alone"
    assert load_run(result.folder).summaries["talon_small"].turns == 2


def test_an_interrupted_run_closes_its_tracker(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = fake_wandb(monkeypatch)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("talon_bench.bench.Bench.measure", interrupt)
    assert cli(*OFFLINE).status == 130
    assert run.calls == ["finish"]


def test_the_null_tracker_has_the_whole_interface() -> None:
    public = {name for name in vars(WandbTracker) if not name.startswith("_")}
    assert public == {name for name in vars(NullTracker) if not name.startswith("_")}


def test_wandb_itself_writes_an_offline_run_under_the_run_folder(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="the optional package wandb is not installed")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = cli(*OFFLINE)
    assert (result.status, result.notes) == (0, [])
    assert "warning: wandb" not in result.err
    offline = list((result.folder / "wandb").glob("offline-run-*"))
    assert len(offline) == 1
    assert [file.suffix for file in offline[0].glob("run-*")] == [".wandb"]
