"""Weights & Biases: live metrics per prompt, final tables and figures, the records. It never harms a run or loses a row."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from talon_bench.errors import UsageError
from talon_bench.records import RunFolder
from talon_bench.report.load import RunData, load_run
from talon_bench.schema import TrackingConfig
from talon_bench.tracking import results
from talon_bench.tracking.live import COLUMNS, METRICS, LiveMetrics
from talon_bench.tracking.null import NullTracker
from talon_bench.tracking.sweep import told_overrides

INIT_SECONDS = 15.0
"""How long a run waits for the service at its start."""
PROMPT_SECONDS = 5.0
"""How long a run waits, between two prompts, for the service to take what there is to show."""
FINISH_SECONDS = 60.0
"""How long a run waits for its uploads at its end."""
RESET_SECONDS = 5.0
"""How long a failed W&B run may take to end before its service is killed."""
FLUSH_SECONDS = 1.0
"""How much of a W&B run on disk a kill may cost."""
SETTINGS = {
    "console": "off",
    "silent": True,  # also keeps wandb from asking for a key on a terminal
    "program": "talon_bench",
    "x_executable": "python",
    "host": "",
    "email": "",
    "username": "",
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "disable_job_creation": True,
    "label_disable": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "use_dot_wandb": False,
    "finish_timeout_raises": True,
}
"""Under these wandb records nothing of its own about machine, user, code and terminal."""
_FOLDERS = {"WANDB_DATA_DIR": "data", "WANDB_CACHE_DIR": "cache"}
"""Variables that else name folders of the user's home, and the folders below the run's `wandb` that take their place."""
_FAILURES = (Exception, SystemExit)
"""wandb ends the process when its service has died."""
_CONFIG = ("identity", "target", "heads", "dataset", "decode", "methods", "left_out", "checkpoint", "provenance")


class WandbTracker(NullTracker):
    """One W&B run per line-up; group is the sweep, job type the target.

    Whatever wandb raises becomes one warning, after which tracking stays off; where the service cannot be reached at the
    start, the W&B run is kept on disk. Raises UsageError where wandb is not installed.
    """

    def __init__(self, config: TrackingConfig) -> None:
        self._config = config
        self._wandb = _import()
        self._run: Any = None
        self._mode = config.mode
        self._begun = False
        self._live = LiveMetrics([])
        self._environment: list[str] = []

    def __exit__(self, *_: object) -> None:
        self._try(lambda: _within(FINISH_SECONDS * 1.2, lambda: self._run.finish(exit_code=1)))
        self._run = None
        for name in self._environment:
            os.environ.pop(name, None)

    def begin(self, folder: RunFolder) -> None:
        self._begun = True
        if self._wandb is None:
            return
        self._live = LiveMetrics(list(folder.info["methods"]))
        for name in _FOLDERS.keys() - os.environ.keys():
            os.environ[name] = str(folder.path.resolve() / "wandb" / _FOLDERS[name])
            self._environment.append(name)
        self._start(folder)
        self._try(lambda: _within(FINISH_SECONDS, lambda: self._replay(folder)))

    def prompt(self, number: int, turns: list[dict]) -> None:
        self._try(lambda: _within(PROMPT_SECONDS, lambda: self._log(turns)))

    def finish(self, folder: RunFolder) -> None:
        if not self._begun:
            if self._shown(folder):
                return
            self.begin(folder)
        if self._run is None:
            return
        run = load_run(folder.path)
        # Online, only the last of these waits for the service; what comes before is on disk for `wandb sync` by then.
        for show in (self._tables, self._figures, self._records, self._close):
            self._try(lambda show=show: show(run))

    def _try(self, action: Callable[[], None]) -> None:
        """Turn any failure into one warning, after which tracking stays off: what was measured is on disk already."""
        if self._run is None:
            return
        try:
            action()
        except _FAILURES as error:
            self._run = None
            _warn(f"wandb stopped ({_reason(error)}); the run goes on without it")
            self._reset()

    def _start(self, folder: RunFolder) -> None:
        try:
            self._run = self._init(folder)
        except _FAILURES as error:
            self._reset()
            if self._mode == "offline":
                _warn(f"wandb is off ({_reason(error)}); the run goes on without it")
                return
            self._mode = "offline"
            _warn(f"wandb is not online ({_reason(error)}); the run goes on, its W&B run stays on disk")
            self._start(folder)
            return
        if self._mode == "online":
            print(f"wandb: {self._run.url}", file=sys.stderr)

    def _init(self, folder: RunFolder) -> Any:
        times = {
            "init_timeout": INIT_SECONDS,
            "finish_timeout": FINISH_SECONDS,
            "x_transaction_log_flush_interval": FLUSH_SECONDS,
        }
        # Silent before init, which else prints and asks while it looks for a key.
        self._wandb.setup(settings=self._wandb.Settings(silent=True))
        info = folder.info
        run = self._wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            mode=self._mode,
            group=self._config.group or f"{info['config']['lineup']['name']}-{info['identity'][:8]}",
            job_type=info["target"],
            name=run_name(info),
            id=run_id(info),
            resume="allow" if self._mode == "online" else None,
            config=_config(info),
            dir=str(folder.path.resolve()),
            reinit="create_new",
            settings=self._wandb.Settings(**SETTINGS, **times),
        )
        run.define_metric("prompts")
        for metric in METRICS:
            run.define_metric(f"{metric}/*", step_metric="prompts")
        return run

    def _replay(self, folder: RunFolder) -> None:
        """Take the prompts that were done before, so that an offline run is whole by itself."""
        rows = folder.rows()[0].select(COLUMNS).to_pylist()
        for _, turns in itertools.groupby(rows, key=lambda row: row["prompt_id"]):
            self._log(list(turns))

    def _log(self, turns: list[dict]) -> None:
        self._live.add(turns)
        # A W&B run that is resumed online has the steps before this one.
        if self._live.prompts >= self._run.starting_step:
            self._run.log(self._live.values(), step=self._live.prompts, commit=True)

    def _tables(self, run: RunData) -> None:
        tables = {
            f"tables/{name}": self._wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
            for name, (columns, rows) in results.tables(run).items()
        }
        summary = results.summary(run, self._live.names)

        def send() -> None:
            self._run.summary.update(summary)
            self._run.log(tables)

        _within(FINISH_SECONDS, send)

    def _figures(self, run: RunData) -> None:
        from PIL import Image

        try:
            drawn = list(results.figures(run))
        except Exception as error:
            # A run of which a figure cannot be drawn still has its records to show.
            _warn(f"wandb is shown no figures ({_reason(error)})")
            return
        images = {}
        for name, png, caption in drawn:
            with Image.open(io.BytesIO(png)) as image:
                images[f"figures/{name}"] = self._wandb.Image(image, caption=caption)
        _within(FINISH_SECONDS, lambda: self._run.log(images))

    def _records(self, run: RunData) -> None:
        artifact = self._wandb.Artifact(f"records-{run_id(run.info)}", type="records", metadata=_facts(run.info))
        for file in results.records(run.path):
            artifact.add_file(str(file.resolve()), policy="immutable", skip_cache=True)
        _within(FINISH_SECONDS, lambda: self._run.log_artifact(artifact))

    def _close(self, run: RunData) -> None:
        # wandb's own limit does not hold while it asks the service for what it supports.
        _within(FINISH_SECONDS * 1.2, self._run.finish)
        if self._mode == "offline":
            place = run.path / "wandb" / Path(self._run.dir).parent.name
            print(f"wandb: offline; wandb sync {place} uploads it", file=sys.stderr)
        self._run = None
        self._mark(run.path).write_text(results.fingerprint(run.path), encoding="utf-8")

    def _shown(self, folder: RunFolder) -> bool:
        """Whether these very results were shown in this mode before."""
        mark = self._mark(folder.path)
        return mark.is_file() and mark.read_text(encoding="utf-8") == results.fingerprint(folder.path)

    def _mark(self, folder: Path) -> Path:
        return folder / "wandb" / f"shown-{self._mode}"

    def _reset(self) -> None:
        """End the service, which may be dead or hold the failed run; the next run starts another."""
        with contextlib.suppress(*_FAILURES):
            _within(RESET_SECONDS, lambda: self._wandb.teardown(exit_code=1))
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.name() == "wandb-core":
                    child.kill()
                    child.wait(RESET_SECONDS)


def run_name(info: dict[str, Any]) -> str:
    """Target, data set, line-up, temperature, what the command line changed, identity: names sort in this order."""
    lineup, temperature = info["config"]["lineup"]["name"], info["decode"]["temperature"]
    parts = [info["target"], info["dataset"]["name"], lineup, f"T{temperature:g}"]
    return " ".join(["-".join(parts), *told_overrides(), info["identity"][:8]])


def run_id(info: dict[str, Any]) -> str:
    """The same for a run and its resumptions; another for a repetition of the measurement."""
    return hashlib.sha256(f"{info['identity']} {info['provenance']['started']}".encode()).hexdigest()[:16]


def _config(info: dict[str, Any]) -> dict[str, Any]:
    composed = {key: value for key, value in info["config"].items() if key not in ("run", "tracking")}
    return {**{key: info[key] for key in _CONFIG}, "config": composed}


def _facts(info: dict[str, Any]) -> dict[str, str]:
    return {"identity": info["identity"], "target": info["target"], "dataset": info["dataset"]["name"]}


def _import() -> Any:
    """The module wandb; None, after a warning, where it is installed and broken."""
    # wandb reports its own failures to its maker, with paths in them.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    missing = UsageError("tracking=wandb needs the package wandb: pip install 'talon-bench[wandb]'")
    try:
        import wandb
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "wandb":
            raise missing from None
        _warn(f"wandb is off ({_reason(error)}); the run goes on without it")
        return None
    if not hasattr(wandb, "init"):  # a folder of that name beside the run, not the package
        raise missing
    return wandb


def _within(seconds: float, action: Callable[[], None]) -> None:
    """Do what may never return: TimeoutError after `seconds`, its thread is left behind."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if failures:
        raise failures[0]


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
