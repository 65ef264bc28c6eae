"""Tracking: absent unless asked for, complete, and harmless whatever the service does. A stand-in takes wandb's place."""

from __future__ import annotations

import io
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from PIL import Image

from conftest import ToyFolders
from talon_bench import job
from talon_bench.compose import compose_config
from talon_bench.report.load import load_run
from talon_bench.report.tables import detail_table
from talon_bench.tracking import results
from talon_bench.tracking.null import NullTracker
from talon_bench.tracking.wandb import WandbTracker
from toy_runs import CommandLine, toy_overrides

OFFLINE = ("tracking=wandb", "tracking.mode=offline", "dataset.limit=2")
MISSING = "error: tracking=wandb needs the package wandb: pip install 'talon-bench[wandb]'"


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))


class FakeRun:
    """Stands for a W&B run."""

    url = "https://example.org/run"

    def __init__(self, service: FakeWandb, options: dict) -> None:
        self.service, self.options = service, options
        self.starting_step = service.starting_step
        self.dir = str(Path(options["dir"]) / "wandb" / "offline-run-1" / "files")
        Path(self.dir).mkdir(parents=True, exist_ok=True)
        self.logged: list[dict] = []
        self.summary: dict[str, object] = {}
        self.artifact: FakeArtifact | None = None
        self.exit_code: int | None = None

    def define_metric(self, name: str, **options: object) -> None:
        self.service.called("define_metric")

    def log(self, values: dict, step: int | None = None, commit: bool | None = None) -> None:
        self.service.called("log")
        self.logged.append({**values, "step": step})

    def log_artifact(self, artifact: FakeArtifact) -> None:
        self.service.called("log_artifact")
        self.artifact = artifact

    def finish(self, exit_code: int = 0) -> None:
        self.service.called("finish")
        self.exit_code = exit_code

    @property
    def live(self) -> list[dict]:
        return [values for values in self.logged if "prompts" in values]


class FakeArtifact:
    def __init__(self, name: str, type: str, metadata: dict) -> None:
        self.name, self.type, self.metadata, self.files = name, type, metadata, {}

    def add_file(self, file: str, policy: str, skip_cache: bool) -> None:
        self.files[Path(file).name] = Path(file).read_bytes()


class FakeWandb(SimpleNamespace):
    """Stands for the module; `failing` names a call that raises `error`, `runs` holds what init handed out."""

    def __init__(self) -> None:
        super().__init__(Settings=dict, Artifact=FakeArtifact, Table=dict)
        self.failing: str | None = None
        self.error: BaseException = ConnectionError("the line is dead")
        self.starting_step = 0
        self.calls: list[str] = []
        self.modes: list[str] = []
        self.runs: list[FakeRun] = []

    def called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise self.error

    def setup(self, settings: dict) -> None:
        assert settings == {"silent": True}, "wandb must not ask for a key"

    def init(self, **options: object) -> FakeRun:
        self.modes.append(options["mode"])
        self.called("init")
        self.runs.append(FakeRun(self, options))
        return self.runs[-1]

    def Image(self, image: object, caption: str) -> tuple:
        return (image.size, caption)

    def teardown(self, exit_code: int) -> None:
        self.called("teardown")
        if self.failing:
            raise SystemExit(exit_code)  # as wandb does when its service died


def plots(*_: object) -> list[SimpleNamespace]:
    """Stands for the figures, which take seconds to draw."""
    png = io.BytesIO()
    Image.new("L", (3, 2)).save(png, "png")
    return [SimpleNamespace(stem="speedup", caption="How fast.", png=lambda dpi: png.getvalue())]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setattr("talon_bench.report.figures.all_plots", plots)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def warnings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: wandb")]


def test_a_missing_wandb_is_refused_before_a_model_is_loaded(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # makes an import fail
    assert cli("dataset.limit=1", "tracking=wandb", "tracking.mode=disabled").status == 0

    def loaded(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("talon_bench.job.load_target", loaded)
    monkeypatch.setattr("talon_bench.job._targets", {})
    for module in (None, SimpleNamespace()):  # not there; a folder named wandb beside the run
        monkeypatch.setitem(sys.modules, "wandb", module)
        missing = cli("dataset.limit=1", "tracking=wandb", "run.fresh=true")
        assert (missing.status, missing.notes) == (2, [MISSING])


def test_a_broken_wandb_is_a_warning(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("raise TypeError('no such descriptor')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    result = cli(*OFFLINE)
    assert (result.status, result.notes) == (0, [])
    assert warnings(result.err) == ["warning: wandb is off (TypeError: no such descriptor); the run goes on without it"]


def test_a_run_is_shown_live_and_with_its_results(cli: CommandLine, service: FakeWandb) -> None:
    result = cli(*OFFLINE, "tracking.project=mine", "decode.max_new_tokens=9")
    assert (result.status, result.notes, warnings(result.err)) == (0, [], [])
    (run,), info = service.runs, load_run(result.folder).info
    given, short = run.options, info["identity"][:8]
    assert (given["project"], given["mode"], given["entity"], given["resume"]) == ("mine", "offline", None, None)
    assert (given["job_type"], given["group"], given["dir"]) == ("toy", f"smoke-{short}", str(result.folder))
    assert given["name"] == f"toy-gsm8k-smoke-T0 decode.max_new_tokens=009 method=talon_small {short}"
    assert given["config"]["methods"]["talon_small"]["budget"] == 6
    assert given["config"]["provenance"] == {
        key: value for key, value in info["provenance"].items() if key not in ("finished", "load_after")
    }
    assert not {"run", "tracking"} & given["config"]["config"].keys()
    assert [values["step"] for values in run.live] == [1, 2]
    for name, entry in result.last["methods"].items():
        for metric in ("speedup", "mat", "eta", "tokens_per_second"):
            assert run.live[-1][f"{metric}/{name}"] == pytest.approx(run.summary[f"{metric}/{name}"]), (metric, name)
            assert metric == "eta" or run.summary[f"{metric}/{name}"] == entry[metric]
        assert [run.summary[f"speedup_{end}/{name}"] for end in ("low", "high")] == entry["speedup_ci95"]
    tables, figures = run.logged[2:]
    assert tables.keys() == {"tables/main", "tables/detail", "step"}
    assert len(tables["tables/detail"]["data"]) == len(info["methods"])
    assert figures["figures/speedup"] == ((3, 2), "How fast.")
    files = ("run.json", "turns.parquet", "rounds.parquet", "trees.parquet")
    assert run.artifact.files == {name: (result.folder / name).read_bytes() for name in files}
    assert run.exit_code == 0


def test_an_online_run_resumes_and_says_where_it_is(cli: CommandLine, service: FakeWandb) -> None:
    result = cli("tracking=wandb", "dataset.limit=1")
    assert service.runs[0].options["resume"] == "allow"
    assert "wandb: https://example.org/run" in result.err.splitlines()


def test_a_finished_run_is_shown_once(cli: CommandLine, service: FakeWandb) -> None:
    first = cli(*OFFLINE)
    assert cli(*OFFLINE).status == 0
    assert len(service.runs) == 1
    assert cli(*OFFLINE, "run.fresh=true").status == 0
    repeated = service.runs[1].options
    assert repeated["group"] == service.runs[0].options["group"]
    info = load_run(first.folder).info
    assert repeated["config"]["provenance"]["started"] == info["provenance"]["started"]


def test_a_run_measured_without_tracking_is_shown_later(
    cli: CommandLine, service: FakeWandb, measured: tuple[list[str], Path], tmp_path: Path
) -> None:
    cli.base, folder = measured
    assert cli(*OFFLINE, f"run.dir='{shutil.copytree(folder, tmp_path / 'run')}'").status == 0
    (run,) = service.runs
    assert [values["prompts"] for values in run.live] == [1, 2]
    assert run.artifact is not None


def test_scores_that_come_later_are_shown(cli: CommandLine, service: FakeWandb) -> None:
    cli(*OFFLINE)
    assert cli(*OFFLINE, "scoring=on").status == 0
    first, second = service.runs
    assert first.options["id"] == second.options["id"]
    assert second.artifact.files.keys() - first.artifact.files.keys() == {"scores.json", "scores.parquet"}


@pytest.mark.parametrize("known", [0, 2])
def test_a_resumed_run_is_the_same_and_whole(
    cli: CommandLine, service: FakeWandb, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    from talon_bench.bench import Bench

    measure = Bench.measure

    def interrupt(self: Bench, number: int, *arguments: object, **options: object) -> tuple:
        if number == 1:
            raise KeyboardInterrupt
        return measure(self, number, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "measure", interrupt)
        assert cli(*OFFLINE).status == 130
    service.starting_step = known
    result = cli(*OFFLINE)
    first, second = service.runs
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert first.options["id"] == second.options["id"]
    assert [values["step"] for values in second.live] == ([2] if known else [1, 2]), "steps that W&B has are left out"
    assert second.live[-1]["mat/talon_small"] == pytest.approx(result.last["methods"]["talon_small"]["mat"])


@pytest.fixture(scope="module")
def measured(toy_folders: ToyFolders, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Overrides of a run, and the folder where it was measured without tracking."""
    root = tmp_path_factory.mktemp("measured")
    overrides = [*toy_overrides(toy_folders, root), "dataset.limit=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psutil.cpu_percent", lambda interval: 1.0)
        outcome = job.run(compose_config(overrides))
    return overrides, Path(outcome.result["run_dir"])


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        *((name, ConnectionError("the line is dead")) for name in ("define_metric", "log", "log_artifact", "finish")),
        *((name, SystemExit(2)) for name in ("log", "finish")),
    ],
)
def test_a_failing_service_harms_nothing(
    cli: CommandLine,
    service: FakeWandb,
    measured: tuple[list[str], Path],
    tmp_path: Path,
    failing: str,
    error: BaseException,
) -> None:
    service.failing, service.error = failing, error
    cli.base, folder = measured
    result = cli(*OFFLINE, f"run.dir='{shutil.copytree(folder, tmp_path / 'run')}'")
    assert (result.status, result.notes) == (0, [])
    state = "is off" if failing == "define_metric" else "stopped"
    text = f"warning: wandb {state} ({type(error).__name__}: {error}); the run goes on without it"
    assert warnings(result.err) == [text]
    assert service.calls.count(failing) == 1, "after a failure it is left alone"
    assert load_run(result.folder).summaries["talon_small"].turns == 2
    assert not list(result.folder.glob("wandb/shown-*")), "the same command shows it another time"


def test_an_unreachable_service_leaves_an_offline_run(cli: CommandLine, service: FakeWandb) -> None:
    service.init = lambda **options: (
        unreachable() if options["mode"] == "online" else FakeWandb.init(service, **options)
    )

    def unreachable() -> None:
        raise ConnectionError("no\n  route")

    result = cli("tracking=wandb", "dataset.limit=1")
    assert (result.status, result.notes) == (0, [])
    assert warnings(result.err) == [
        "warning: wandb is not online (ConnectionError: no route); the run goes on, its W&B run stays on disk"
    ]
    (run,) = service.runs
    assert (run.options["mode"], run.exit_code) == ("offline", 0)


def test_a_service_that_dies_under_way_harms_nothing(cli: CommandLine, service: FakeWandb) -> None:
    service.failing = "log"
    result = cli(*OFFLINE)
    assert (result.status, result.notes, len(warnings(result.err))) == (0, [], 1)
    assert service.calls.count("log") == 1
    assert load_run(result.folder).summaries["talon_small"].turns == 2


@pytest.mark.parametrize(
    ("silent", "fresh", "seconds"), [("finish", False, 0.3), ("log", False, 0.25), ("log", True, 0.5)]
)
def test_a_service_that_never_answers_is_left(
    cli: CommandLine,
    service: FakeWandb,
    measured: tuple[list[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    silent: str,
    fresh: bool,
    seconds: float,
) -> None:
    """As a stopped process: the run waits for its end once, or for the first prompt that is shown, new or replayed."""
    answer = threading.Event()
    monkeypatch.setattr(FakeRun, silent, lambda *_, **__: service.called(silent) or answer.wait(60))
    monkeypatch.setattr("talon_bench.tracking.wandb.FINISH_SECONDS", 0.25)
    monkeypatch.setattr("talon_bench.tracking.wandb.PROMPT_SECONDS", 0.5)
    overrides = []
    if not fresh:
        cli.base, folder = measured
        overrides = [f"run.dir='{shutil.copytree(folder, tmp_path / 'run')}'"]
    result = cli(*OFFLINE, *overrides)
    answer.set()
    assert (result.status, result.notes) == (0, [])
    assert warnings(result.err) == [
        f"warning: wandb stopped (TimeoutError: no answer within {seconds} s); the run goes on without it"
    ]
    assert service.calls.count(silent) == 1
    assert load_run(result.folder).summaries["talon_small"].turns == 2


def test_a_figure_that_cannot_be_drawn_leaves_the_rest(
    cli: CommandLine,
    service: FakeWandb,
    measured: tuple[list[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def undrawable(*_: object) -> list:
        raise ValueError("no axis")

    monkeypatch.setattr("talon_bench.report.figures.all_plots", undrawable)
    cli.base, folder = measured
    result = cli(*OFFLINE, f"run.dir='{shutil.copytree(folder, tmp_path / 'run')}'")
    assert (result.status, result.notes) == (0, [])
    assert warnings(result.err) == ["warning: wandb is shown no figures (ValueError: no axis)"]
    assert service.runs[0].artifact.files
    assert service.runs[0].exit_code == 0


def test_jobs_of_a_multirun_share_a_group_and_tell_their_settings(cli: CommandLine, service: FakeWandb) -> None:
    sweep = ("-m", "method.alpha=0.01,0.3", "method.budget=6,16", "tracking=wandb", "dataset.limit=1")
    cli.base += ["decode.max_new_tokens=2"]
    assert cli(*sweep).status == 0
    groups = {run.options["group"] for run in service.runs}
    names = [run.options["name"][:-9] for run in service.runs]
    assert len(service.runs) == 4
    assert [group[:-8] for group in groups] == ["method.alpha+method.budget-"]
    start = "toy-gsm8k-smoke-T0 decode.max_new_tokens=002 method.alpha="
    assert names == sorted(names)
    assert names[0] == f"{start}0.01 method.budget=006 method=talon_small"
    assert names[-1] == f"{start}0.3 method.budget=016 method=talon_small"
    cli("-m", "method.alpha=0.02", "dataset.limit=1", "tracking=wandb", "tracking.group=mine")
    assert [run.options["group"] for run in service.runs[4:]] == ["mine"]


def test_tables_hold_plain_values(measured: tuple[list[str], Path]) -> None:
    run = load_run(measured[1])
    tables = results.tables(run)
    columns, rows = tables["main"]
    assert columns[:5] == ["target", "method", "gsm8k speedup", "gsm8k ci_low", "gsm8k ci_high"]
    assert rows[0][:3] == ["toy", "AR", 1.0]
    columns, rows = tables["detail"]
    frame = detail_table([run])
    assert columns == [name for name in frame.columns if name != "run"]
    assert [row[columns.index("MAT")] for row in rows] == frame["MAT"].tolist()
    assert [row[columns.index("budget")] for row in rows] == [None, 6, 6]
    assert {type(value) for row in rows for value in row} <= {str, int, float, bool, type(None)}
    assert pq.read_table(run.path / "turns.parquet").num_rows == sum(row[columns.index("turns")] for row in rows)


def test_the_null_tracker_has_the_whole_interface() -> None:
    public = {name for name in vars(WandbTracker) if not name.startswith("_")}
    assert public == {name for name in vars(NullTracker) if not name.startswith("_")}
