"""Jobs as processes, and where they run: killed, interrupted and orphaned ones, GPUs and cores, what a sweep prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf

from conftest import ToyFolders
from launched import gone
from talon_bench.compose import compose_config
from talon_bench.errors import UsageError
from talon_bench.launch import process, slots, sweep
from talon_bench.launch.process import JOBS_AT_ONCE, Ended, Job, interrupt
from talon_bench.launch.slots import Slots, find_slots
from talon_bench.records import RunFolder
from toy_runs import CommandLine, toy_overrides

HEAD = "import os, signal, sys, time\nfrom pathlib import Path\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`program(text)`: jobs run this Python text instead of talon_bench."""

    def write(text: str) -> Path:
        file = tmp_path / "program.py"
        file.write_text(HEAD + text)
        monkeypatch.setattr(process, "PROGRAM", (sys.executable, "-S", str(file)))
        return file

    return write


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))


def job(folder: Path, *arguments: str, **options: object) -> Job:
    return Job("toy", arguments, str(folder), **options)


def test_a_job_gives_its_status_and_all_that_it_wrote(program: Callable, tmp_path: Path) -> None:
    program(
        "print(sys.argv[1:], os.getcwd(), os.environ['A'])\n"
        "print('one', file=sys.stderr)\nprint('twö', file=sys.stderr)\nsys.exit(2)"
    )
    ended = job(tmp_path, "x=1", "y=é")({"A": "b"})
    assert ended == Ended(2, f"['x=1', 'y=é'] {os.path.realpath(tmp_path)} b\n", "one\ntwö\n")


def test_a_killed_job_is_started_again_so_often(
    program: Callable, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program(
        "tries = Path('tries'); count = len(tries.read_text()) if tries.exists() else 0\n"
        "tries.write_text('x' * (count + 1))\nprint('try', count, file=sys.stderr, flush=True)\n"
        "if count < 2: os.kill(os.getpid(), signal.SIGKILL)\nprint('done')"
    )
    ended = job(tmp_path, retries=1, echo=True)({})
    assert (ended.status, ended.out) == (1, "")
    lines = ["try 0", "killed by SIGKILL; started again", "try 1", f"error: killed by SIGKILL; {process.KEPT}"]
    assert ended.err.splitlines() == lines
    assert capfd.readouterr().err.splitlines() == [f"[toy] {line}" for line in lines]
    assert job(tmp_path)({}) == Ended(0, "done\n", "try 2\n")


def started(folder: Path) -> int:
    """Process number that the program has written by now."""
    deadline = time.monotonic() + 20
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int((folder / "pid").read_text())


def test_an_interrupted_job_ends_and_is_not_started_again(program: Callable, tmp_path: Path) -> None:
    program("Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)")
    running = job(tmp_path, retries=3)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(running, {})
        pid = started(tmp_path)
        interrupt([running])
        assert future.result(timeout=10).status == 130
    assert not psutil.pid_exists(pid)
    assert running({}) == Ended(130), "a job that was interrupted before its turn does not start"


def test_a_job_that_ignores_an_interrupt_is_killed_with_its_children(
    program: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    program(
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nchild = os.fork()\n"
        "if child: Path('pid').write_text(str(child))\ntime.sleep(60)"
    )
    running = job(tmp_path)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(running, {})
        child = psutil.Process(started(tmp_path))
        interrupt([running])
        assert future.result(timeout=10).status == 130
    assert gone([child])


@pytest.mark.parametrize("deaf", [False, True])
def test_jobs_end_with_a_parent_that_is_killed(program: Callable, tmp_path: Path, deaf: bool) -> None:
    file = program(
        f"sys.path[:] = {sys.path!r}\nfrom talon_bench.launch import process\nprocess.GRACE_S = {0.2 if deaf else 60}\n"
        "process.end_with_parent()\n"
        + ("signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if deaf else "")
        + "Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)"
    )
    text = (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        f"from talon_bench.launch import process\nprocess.PROGRAM = {process.PROGRAM!r}\n"
        f"process.Job('toy', (), {str(tmp_path)!r})({{}})"
    )
    parent = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE)
    running = psutil.Process(started(file.parent))
    parent.kill()
    parent.communicate()
    assert gone([running])


class Probe:
    """Stands for a job: notes on which GPUs it ran, and that no other was there meanwhile."""

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self.used: list[str] = []
        self.told: list[str] = []

    def __call__(self, environment: dict[str, str]) -> Ended:
        gpus = environment["CUDA_VISIBLE_DEVICES"].split(",")
        assert not self.busy & set(gpus), "two jobs on one GPU"
        self.busy |= set(gpus)
        self.used += gpus
        time.sleep(0.02)
        self.busy -= set(gpus)
        return Ended(0)

    def tell(self, line: str) -> None:
        self.told.append(line)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], None]:
    monkeypatch.setenv("TALON_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(slots, "_POLL_S", 0.005)
    return lambda count: monkeypatch.setattr(slots, "visible_gpus", lambda: [str(at) for at in range(count)])


def test_no_two_jobs_are_on_one_gpu_also_of_two_commands(gpus: Callable[[int], None]) -> None:
    gpus(4)
    single = find_slots(compose_config(["launch=joblib"]).launch, jobs=12)
    pairs = find_slots(compose_config(["launch=joblib", "launch.joblib.gpus=2"]).launch, jobs=12)
    assert (single.count, single.groups) == (4, (("0",), ("1",), ("2",), ("3",)))
    assert (pairs.count, pairs.groups) == (2, (("0", "1"), ("2", "3")))
    probe = Probe()
    with ThreadPoolExecutor(6) as pool:
        ends = [pool.submit(which.run, probe) for which in [single, pairs] * 12]
        assert [end.result(timeout=20).status for end in ends] == [0] * 24
    assert len(probe.used) == 12 + 24
    assert set(probe.used) == set("0123")
    assert "waits for a free GPU" in probe.told


def test_a_gpu_is_free_again_after_a_job_that_raised(gpus: Callable[[int], None]) -> None:
    gpus(1)
    one = find_slots(compose_config(["launch=joblib"]).launch, jobs=1)

    def broken(environment: dict[str, str]) -> Ended:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        one.run(broken)
    assert one.run(Probe()).status == 0


@pytest.mark.parametrize(
    ("overrides", "count", "message"),
    [
        (["launch.device=cuda:1"], 2, "launch.device is cuda:1; with launch=joblib each job has a GPU of its own"),
        (["launch.joblib.workers=3"], 2, "3 jobs at once with 1 GPUs each; this machine has 2 GPUs"),
        (["launch.joblib.gpus=3"], 2, "1 jobs at once with 3 GPUs each; this machine has 2 GPUs"),
    ],
)
def test_more_than_the_machine_has_is_refused(
    gpus: Callable[[int], None], overrides: list[str], count: int, message: str
) -> None:
    gpus(count)
    with pytest.raises(UsageError, match=message) as error:
        find_slots(compose_config(["launch=joblib", *overrides]).launch, jobs=8)
    assert "\n" not in str(error.value)


def test_jobs_on_a_cpu_share_its_cores(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))

    def found(*overrides: str, jobs: int = 9) -> Slots:
        return find_slots(compose_config(["launch=joblib", "launch.device=cpu", *overrides]).launch, jobs)

    assert found() == Slots(2, threads=6)
    assert found("launch.joblib.workers=5") == Slots(5, threads=2)
    assert found("launch.joblib.workers=5", jobs=3) == Slots(3, threads=4)
    assert found("launch.joblib.workers=40", jobs=40) == Slots(40, threads=1)
    assert found("launch.threads=3") == Slots(2, threads=3)
    given = []
    found().run(lambda environment: given.append(environment))
    assert given == [{JOBS_AT_ONCE: "2", "OMP_NUM_THREADS": "6", "MKL_NUM_THREADS": "6"}]


def test_gpus_keep_the_names_under_which_they_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert slots.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-ab")
    assert slots.visible_gpus() == ["5", "GPU-ab"]


def test_a_job_is_the_command_with_one_value_for_each_key() -> None:
    config = OmegaConf.create(
        {
            "hydra": {
                "overrides": {"hydra": ["hydra.mode=MULTIRUN", "hydra.verbose=true", "hydra.launcher.x=1"]},
                "runtime": {
                    "config_sources": [
                        {"provider": "main", "path": "conf"},
                        {"provider": "command-line", "path": "mine"},
                    ]
                },
            }
        }
    )
    grid = [["run.root='a b'", f"dataset={name}", "launch=joblib", "+x=1"] for name in ("gsm8k", "mbpp")]
    first, second = sweep.make_jobs(config, grid)
    assert (first.name, second.name) == ("dataset=gsm8k", "dataset=mbpp")
    common = ["--config-dir", "mine", "hydra.verbose=true", "run.root='a b'"]
    assert second.arguments == (*common, "dataset=mbpp", "launch=joblib", "+x=1", "hydra.mode=RUN")
    assert second.folder == os.getcwd()
    assert [alike.name for alike in sweep.make_jobs(config, [grid[0], grid[0]])] == ["job 0", "job 1"]


def test_a_sweep_prints_its_jobs_in_order_and_keeps_their_statuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sweep, "statuses", [])
    jobs = [Job(name, (), str(tmp_path), echo=name == "b") for name in "ab"]
    ends = [Ended(0, "table\n{}\n", "warning: x\n"), Ended(2, "", "error: y\n")]
    returns = sweep.finish(jobs, [["k=a"], ["k=b"]], iter(ends))
    printed = capsys.readouterr()
    assert printed.out == "table\n{}\n"
    assert printed.err == "[a] warning: x\n", "what was shown at once is not shown again"
    assert [(entry.overrides, entry.return_value) for entry in returns] == [(["k=a"], 0), (["k=b"], 2)]
    assert sweep.statuses == [0, 2]


@pytest.mark.parametrize(("launch", "module"), [("joblib", "joblib"), ("slurm", "submitit"), ("ray", "ray")])
def test_a_launcher_that_is_not_installed_is_one_line(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, launch: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = cli("-m", f"launch={launch}", "dataset=gsm8k,mt_bench")
    message = f"error: launch={launch} needs the package {module}: pip install 'talon-bench[{launch}]'\n"
    assert (result.status, result.out, result.err) == (2, "", message)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["launch=joblib", "launch.joblib.workers=0"], "launch.joblib.workers is 0; give 1 or more"),
        (["launch=joblib", "launch.joblib.retries=-1"], "launch.joblib.retries is -1; give 0 or more"),
        (["launch=slurm", "launch.slurm.cluster=lsf"], "launch.slurm.cluster is lsf; expected slurm or local"),
        (["launch=slurm", "launch.slurm.minutes=0"], "launch.slurm.minutes is 0; give 1 or more"),
        (["launch=ray", "launch.ray.gpus=-1"], "launch.ray.gpus is -1; give 0 or more"),
    ],
)
def test_impossible_settings_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose_config(overrides)


@pytest.mark.parametrize("overrides", [["launch=joblib", "launch.slurm.partition=gpu"], ["sweep.field=alpha"]])
def test_options_of_a_group_that_is_not_chosen_are_refused(cli: CommandLine, overrides: list[str]) -> None:
    result = cli(*overrides)
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        "error: an option of a group that is null; choose a file first: +sweep=, launch=joblib, slurm or ray\n"
    )


@pytest.mark.parametrize("launch", ["joblib", "slurm", "ray"])
def test_where_a_job_runs_is_no_part_of_what_it_measures(launch: str) -> None:
    """So a sweep resumes and merges under any launcher."""
    config = compose_config([f"launch={launch}"])
    assert getattr(config.launch, launch) is not None
    assert config.launch.of_job() == compose_config().launch.of_job()
    assert {"device": "auto", "threads": None}.items() <= config.launch.of_job().items()


def test_a_held_folder_is_waited_for_then_refused(tmp_path: Path) -> None:
    holder = RunFolder(tmp_path / "run", "abc")
    holder.begin({"identity": "abc"})
    start = time.monotonic()
    with pytest.raises(UsageError, match="is being written by another process; wait for it"):
        RunFolder(tmp_path / "run", "abc", wait_s=0.3)
    assert time.monotonic() - start >= 0.3
    threading.Timer(0.2, holder.close).start()
    waited = RunFolder(tmp_path / "run", "abc", wait_s=20)
    assert waited.info["identity"] == "abc", "what the other wrote is seen"
    waited.close()


def test_a_folder_that_comes_and_goes_never_has_two_holders(tmp_path: Path) -> None:
    """`close` removes a folder in which nothing began, lock file and all, while others are about to lock it."""
    inside = threading.Lock()
    entered = []

    def enter(number: int) -> None:
        for _ in range(40):
            try:
                folder = RunFolder(tmp_path / "run", "abc")
            except UsageError:
                continue
            assert inside.acquire(blocking=False), "two holders at once"
            entered.append(number)
            inside.release()
            folder.close()

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(enter, number) for number in range(8)]:
            future.result(timeout=30)
    assert len(entered) >= 40
    assert not (tmp_path / "run").exists()


def test_a_launched_job_watches_its_stdin() -> None:
    """Only then: a terminal's or a pipe's stdin is none of a single run's business."""
    assert not process.launched()
    assert process.jobs_at_once() is None
    text = (
        "import sys; from talon_bench.launch import process\n"
        "print(process.launched(), process.jobs_at_once()); process.end_with_parent(); sys.stdout.flush()\n"
        "import time; time.sleep(60)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, JOBS_AT_ONCE: ""},
        input="",
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "True None\n"
    assert done.returncode in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
