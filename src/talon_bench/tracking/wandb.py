"""Weights & Biases: live metrics per prompt, the final table and the records. It never harms a run or loses a row."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.records import RunFolder
from talon_bench.report.load import load_run
from talon_bench.report.tables import detail_table
from talon_bench.schema import TrackingConfig
from talon_bench.tracking.null import NullTracker


def _harmless(method: Callable) -> Callable:
    """Turn any failure of the service into one warning, after which tracking stays off."""

    @wraps(method)
    def guarded(self: WandbTracker, *arguments: object) -> None:
        if self._run is None:
            return
        try:
            method(self, *arguments)
        except Exception as error:
            # Whatever wandb raises, the measurement goes on: its rows are on disk already.
            print(
                f"warning: wandb stopped ({type(error).__name__}: {error}); the run goes on without it",
                file=sys.stderr,
            )
            self._run = None

    return guarded


class WandbTracker(NullTracker):
    """One W&B run per line-up; group is the sweep, job type the target."""

    def __init__(self, config: TrackingConfig, folder: RunFolder) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("tracking=wandb needs the package wandb: pip install 'talon-bench[wandb]'") from None
        self._wandb = wandb
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        info = folder.info
        try:
            self._run = wandb.init(
                project=config.project,
                entity=config.entity,
                mode=config.mode,
                group=config.group or info["identity"][:8],
                job_type=info["target"],
                name=folder.path.name,
                id=info["identity"][:16],
                resume="allow",
                config={
                    key: info[key] for key in ("target", "dataset", "decode", "methods", "checkpoint", "provenance")
                },
                dir=str(folder.path),
                settings=wandb.Settings(console="off", init_timeout=30),
            )
        except Exception as error:
            print(
                f"warning: wandb is off ({type(error).__name__}: {error}); the run goes on without it",
                file=sys.stderr,
            )
            self._run = None

    def __exit__(self, *_: object) -> None:
        self._close()

    @_harmless
    def prompt(self, number: int, turns: list[dict]) -> None:
        for row in turns:
            if row["status"] == "ok":
                values = (row["new_tokens"] - 1, row["rounds"], row["decode_ms"])
                self._sums[row["method"]] = [a + b for a, b in zip(self._sums[row["method"]], values, strict=True)]
        live = {"prompt": number}
        for method, (tokens, rounds, ms) in self._sums.items():
            if rounds:
                live[f"{method}/mat"] = tokens / rounds
                live[f"{method}/tokens_per_second"] = 1000 * tokens / ms
        self._run.log(live)

    @_harmless
    def finish(self, run: Path) -> None:
        data = load_run(run)
        self._run.log({"results": self._wandb.Table(dataframe=detail_table([data]).astype(str))})
        for name, row in data.summaries.items():
            for metric in ("mat", "eta", "tokens_per_second", "speedup"):
                self._run.summary[f"{name}/{metric}"] = getattr(row, metric)
        records = self._wandb.Artifact(f"records-{data.info['identity'][:16]}", type="records")
        for file in ("run.json", "turns.parquet", "rounds.parquet"):
            records.add_file(str(run / file))
        self._run.log_artifact(records)

    @_harmless
    def _close(self) -> None:
        self._run.finish()
        self._run = None
