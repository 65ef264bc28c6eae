"""Tracking with wandb itself, offline or without a network: what is on disk, what is not in it, and what a kill leaves.

Run as a program, this file is the process that is killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from wandb_files import Shown, read_offline

SECRET = "planted-9f8e7d6c"
METRICS = ("speedup", "mat", "eta", "tokens_per_second")
METHODS = ("ar", "eagle3_small", "talon_small")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of a user named Zaphod, with secrets in the environment; wandb's service ends with the test."""
    wandb = pytest.importorskip("wandb", reason="the optional package wandb is not installed")
    wandb.teardown()
    folder = tmp_path / "home" / "zaphod"
    (folder / "here").mkdir(parents=True)
    monkeypatch.chdir(folder / "here")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    given = {"HOME": folder, "NETRC": folder / "none", "USER": "zaphod", "LOGNAME": "zaphod", "MY_TOKEN": SECRET}
    wandb_own = {"WANDB_USERNAME": "zaphod", "WANDB_USER_EMAIL": "zaphod@example.org", "WANDB_HOST": "heart-of-gold"}
    for name, value in {**given, **wandb_own, "WANDB_ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(name, str(value))
    yield folder
    wandb.teardown()


@pytest.fixture
def cli(toy_folders, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    from toy_runs import CommandLine, toy_overrides

    return CommandLine(monkeypatch, capfd, [*toy_overrides(toy_folders, home), "dataset.limit=2", "tracking=wandb"])


def shown(folder: Path) -> Shown:
    """The one W&B run below a run folder."""
    (run,) = folder.glob("wandb/*run-*/run-*.wandb")
    return read_offline(run.parent)


def warnings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: wandb")]


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw them all takes seconds."""
    from talon_bench.report import figures

    monkeypatch.setattr(figures, "all_plots", lambda runs: [figures.speedup(runs)])


def assert_whole(run: Shown, folder: Path) -> None:
    """Config, live metrics, tables, images and records are on disk."""
    info = json.loads((folder / "run.json").read_text())
    assert run.config["identity"] == info["identity"]
    assert run.config["methods"] == info["methods"]
    live = [row for row in run.history if "prompts" in row]
    assert [(row["_step"], row["prompts"]) for row in live] == [(1, 1), (2, 2)]
    assert {f"{metric}/{method}" for metric in METRICS for method in METHODS} <= live[-1].keys()
    tables = {name: json.loads(file.read_text()) for name, file in run.media("table").items()}
    assert tables.keys() == {"tables/main", "tables/detail"}
    assert [row[1] for row in tables["tables/main"]["data"]] == ["AR", "EAGLE-3 (6 nodes)", "TALON (6 nodes)"]
    images = run.media("images")
    assert "figures/speedup" in images
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in images.values())
    assert run.artifacts["records"] == {
        name: folder / name for name in ("run.json", "turns.parquet", "rounds.parquet", "trees.parquet")
    }
    assert run.exit_code == 0


def test_an_offline_run_holds_everything_and_nothing_private(cli, home: Path) -> None:
    result = cli("tracking.mode=offline")
    assert (result.status, result.notes, warnings(result.err)) == (0, [], [])
    run = shown(result.folder)
    assert f"wandb: offline; wandb sync {run.folder} uploads it" in result.err.splitlines()
    assert_whole(run, result.folder)
    assert {"figures/funnel", "figures/round_time"} <= run.media("images").keys()
    assert (run.run.job_type, run.run.display_name[:18]) == ("toy", "toy-gsm8k-smoke-T0")
    for name, entry in result.last["methods"].items():
        for metric in ("speedup", "mat", "tokens_per_second"):
            assert run.summary[f"{metric}/{name}"] == pytest.approx(entry[metric])

    private = re.compile(rf"zaphod|heart-of-gold|{SECRET}|/work\b|{re.escape(str(home.parents[1]))}|/root\b|\b{HOST}\b")
    texts = {"W&B run": "\n".join(run.text)}
    for file in [*(run.folder / "files").rglob("*"), *run.artifacts["records"].values()]:
        if file.suffix == ".parquet":
            columns = pq.read_table(file).to_pydict()
            texts[file.name] = json.dumps(columns, default=str)
        elif file.suffix == ".png":
            with Image.open(file) as image:
                texts[file.name] = json.dumps(image.info, default=str)
        elif file.is_file():
            texts[file.name] = file.read_text(encoding="utf-8")
    assert len(texts) > 10
    assert {name: found[0] for name, text in texts.items() if (found := private.search(text))} == {}

    everything = [file for file in result.folder.rglob("*") if file.is_file()]
    assert not [file for file in everything if SECRET.encode() in file.read_bytes()]
    assert not [file for file in home.rglob("*wandb*") if result.folder not in file.parents]
    assert not list((home / "here").iterdir()), "nothing in the working directory"


HOST = re.escape(socket.gethostname())


@pytest.mark.usefixtures("one_figure")
@pytest.mark.parametrize("trouble", ["no key", "no network"])
def test_online_without_the_service_ends_normally(cli, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    if trouble == "no network":
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        monkeypatch.setattr("talon_bench.tracking.wandb.INIT_SECONDS", 2.0)
    start = time.monotonic()
    result = cli()
    assert time.monotonic() - start < 40
    assert (result.status, result.notes) == (0, [])
    (warning,) = warnings(result.err)
    reason = "No API key configured" if trouble == "no key" else "Failed to get resume status"
    assert reason in warning
    assert warning.endswith("the run goes on, its W&B run stays on disk")
    (offline,) = result.folder.glob("wandb/offline-run-*")
    assert_whole(read_offline(offline), result.folder)


@pytest.mark.usefixtures("one_figure")
def test_a_crash_of_the_service_harms_nothing(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    from talon_bench.bench import Bench

    measure = Bench.measure

    def crash_first(self: Bench, number: int, *arguments: object, **options: object) -> tuple:
        if number == 1:
            (core,) = [child for child in psutil.Process().children() if child.name() == "wandb-core"]
            core.kill()
            core.wait(5)
        return measure(self, number, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "measure", crash_first)
        result = cli("tracking.mode=offline")
    assert (result.status, result.notes) == (0, [])
    assert [warning.endswith("; the run goes on without it") for warning in warnings(result.err)] == [True]
    before = shown(result.folder).folder
    again = cli("tracking.mode=offline")
    assert (again.status, warnings(again.err)) == (0, [])
    (after,) = set(result.folder.glob("wandb/offline-run-*")) - {before}
    assert_whole(read_offline(after), result.folder)


@pytest.mark.usefixtures("one_figure")
def test_a_kill_leaves_usable_results_and_a_resumption_is_whole(cli, home: Path) -> None:
    """The process that is killed also runs without tracking before, and fails if that imports wandb."""
    killed = subprocess.run(
        [sys.executable, __file__, *cli.base],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert json.loads(killed.stdout.splitlines()[-1]) == []
    (folder,) = (home / "runs").glob("toy-*")
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    left = shown(folder)
    assert [row["prompts"] for row in left.history] == [1], "the prompt before the kill"
    assert left.config["methods"].keys() == set(METHODS)
    assert f"speedup/{METHODS[2]}" in left.history[0]

    result = cli("tracking.mode=offline")
    assert (result.status, result.notes, warnings(result.err)) == (0, [], [])
    (second,) = set(folder.glob("wandb/offline-run-*")) - {left.folder}
    resumed = read_offline(second)
    assert resumed.run.run_id == left.run.run_id
    assert_whole(resumed, folder)


def main(overrides: list[str]) -> None:
    """A run without tracking, what it imported of wandb, and a tracked run that is killed in its second prompt."""
    import psutil

    from talon_bench import job
    from talon_bench.bench import Bench
    from talon_bench.compose import compose_config

    psutil.cpu_percent = lambda interval: 1.0
    config = compose_config([*overrides, "tracking=none", "dataset.limit=1"])
    config.run.dir = f"{config.run.root}/untracked"
    job.run(config)
    print(json.dumps([name for name in sys.modules if name.partition(".")[0] == "wandb"]), flush=True)

    from talon_bench.tracking.wandb import FLUSH_SECONDS

    measure = Bench.measure

    def die(self: Bench, number: int, *arguments: object, **options: object) -> tuple:
        if number == 1:
            time.sleep(1.5 * FLUSH_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(self, number, *arguments, **options)

    Bench.measure = die
    job.run(compose_config([*overrides, "tracking.mode=offline"]))


if __name__ == "__main__":
    main(sys.argv[1:])
