"""Real sweeps of the toys through each launcher: the records of a serial sweep, whatever happens to a job meanwhile."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from conftest import ToyFolders
from launched import Ended, Sweep, gone
from talon_bench import job
from talon_bench.compose import compose_config
from talon_bench.report.load import load_runs
from toy_runs import rows, toy_overrides

ALPHAS = (0.5, 0.03)


@pytest.fixture(scope="module")
def base(toy_folders: ToyFolders, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a job that takes long enough to be met at work; run folders go below the command's own folder."""
    given = toy_overrides(toy_folders, tmp_path_factory.mktemp("launch"))
    kept = [override for override in given if not override.startswith("run.root")]
    small = ["lineup=baseline", "dataset.limit=2", "decode.max_new_tokens=150", "launch.device=cpu"]
    return [*kept, "run.root=runs", *small]


@pytest.fixture(scope="module")
def serial(base: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[dict]]]:
    """Rows, times aside, of each alpha measured alone in this process, by run folder."""
    root = tmp_path_factory.mktemp("serial")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psutil.cpu_percent", lambda interval: 1.0)
        patch.chdir(root)
        for alpha in ALPHAS:
            outcome = job.run(compose_config([*base, f"method.alpha={alpha}"]))
            folder = root / outcome.result["run_dir"]
            found[folder.name] = records(folder)
    return found


def records(folder: Path) -> dict[str, list[dict]]:
    return {kind: rows(folder, kind) for kind in ("turns", "rounds", "trees")}


def infos(root: Path) -> dict[float, dict]:
    """run.json of all that is below a folder, by alpha; each is complete and its rows add up."""
    return {run.info["methods"]["talon_small"]["alpha"]: run.info for run in load_runs(root / "runs")}


def assert_equals(root: Path, serial: dict[str, dict[str, list[dict]]]) -> None:
    """The sweep left the serial sweep's run folders, by name and row for row, and nothing half-written."""
    assert {run.path.name: records(run.path) for run in load_runs(root / "runs")} == serial
    assert not [*root.rglob("parts"), *root.rglob(".*.part")]


@pytest.fixture(scope="module")
def joblib(base: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """Two jobs of one identity at once, a bad request, and a job that is killed after its first prompt."""
    pytest.importorskip("joblib")
    root = tmp_path_factory.mktemp("joblib")
    with Sweep.start(root, [*base, "launch=joblib", "method.alpha=0.5,0.5,1.5,0.03"]) as sweep:
        sweep.halt_job(0.03).kill()
        return root, sweep.end()


def test_jobs_at_once_leave_the_records_of_a_serial_sweep(joblib: tuple[Path, Ended], serial: dict) -> None:
    assert_equals(joblib[0], serial)


def test_a_killed_job_resumes_and_a_bad_one_stops_no_other(joblib: tuple[Path, Ended]) -> None:
    root, ended = joblib
    assert ended.status == 2, ended.err
    lines = ended.err.splitlines()
    assert "[method.alpha=1.5] error: method talon_small: alpha is 1.5; expected a value in (0, 1]" in lines
    assert "[method.alpha=0.03] killed by SIGKILL; started again" in lines
    assert "Traceback" not in ended.err
    assert [len(infos(root)[alpha].get("resumed", [])) for alpha in ALPHAS] == [0, 1]


def test_the_command_prints_every_jobs_result_in_order(joblib: tuple[Path, Ended]) -> None:
    root, ended = joblib
    folders = [result["run_dir"] for result in ended.results]
    alphas = [json.loads((root / folder / "run.json").read_text())["config"]["method"]["alpha"] for folder in folders]
    assert alphas == [0.5, 0.5, 0.03]
    assert folders[0] == folders[1], "two jobs of one identity share its folder"
    assert ended.out.splitlines()[-1].startswith("{")


def test_jobs_that_share_cores_say_so(joblib: tuple[Path, Ended]) -> None:
    root, ended = joblib
    machines = [info["provenance"] for info in infos(root).values()]
    assert [(machine["jobs_at_once"], machine["busy"]) for machine in machines] == [(2, True)] * 2
    assert "] warning: 2 jobs share this machine; times of this run are flagged" in ended.err
    assert all("launch" in info["config"] and "joblib" not in info["config"]["launch"] for info in infos(root).values())


def test_ctrl_c_leaves_no_process(base: list[str], tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    sweep = Sweep.start(tmp_path, [*base, "launch=joblib", "method.alpha=0.5,0.03,0.1"])
    sweep.wait_for(lambda: len(sweep.jobs()) == 2)
    left = psutil.Process(sweep.process.pid).children(recursive=True)
    sweep.process.send_signal(signal.SIGINT)
    ended = sweep.end()
    assert ended.status == 130, ended.err
    assert ended.err.splitlines()[-1].startswith("interrupted; what was measured is kept")
    assert gone(left, seconds=1)
    assert not ended.results


def test_a_job_that_the_scheduler_requeues_resumes(base: list[str], serial: dict, tmp_path: Path) -> None:
    """Through submitit's executor of this machine, which gives the signals that Slurm gives."""
    pytest.importorskip("submitit")
    local = ["launch=slurm", "launch.slurm.cluster=local", "launch.slurm.cpus=1"]
    with Sweep.start(tmp_path, [*base, *local, "method.alpha=0.5,0.03"]) as sweep:
        running = sweep.halt_job(0.03)
        # To the process that holds the job, as Slurm does before it ends one.
        running.parent().send_signal(signal.SIGUSR2)
        logs = tmp_path / "runs" / ".submitit"
        sweep.wait_for(lambda: any("SIGUSR2" in file.read_text() for file in logs.rglob("*_log.out")))
        running.resume()
        ended = sweep.end()
    assert (ended.status, len(ended.results)) == (0, 2), ended.err
    assert_equals(tmp_path, serial)
    assert [len(infos(tmp_path)[alpha].get("resumed", [])) for alpha in ALPHAS] == [0, 1]


def test_a_local_ray_cluster_runs_a_sweep(base: list[str], serial: dict, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: it is large, and only launch=ray needs it")
    with Sweep.start(tmp_path, [*base, "launch=ray", "method.alpha=0.5,0.03"]) as sweep:
        running = sweep.halt_job(0.03)
        left = psutil.Process(sweep.process.pid).children(recursive=True)
        # The worker, not the job: Ray starts the task again elsewhere, and the orphaned job ends by itself.
        os.kill(running.ppid(), signal.SIGKILL)
        running.resume()
        ended = sweep.end()
        assert gone(left)
    assert (ended.status, len(ended.results)) == (0, 2), ended.err
    assert_equals(tmp_path, serial)
    assert [len(infos(tmp_path)[alpha].get("resumed", [])) for alpha in ALPHAS] == [0, 1]
