"""A progress bar on stderr with live MAT and tokens/s of each method."""

from __future__ import annotations

from collections import defaultdict
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from talon_bench.launch.process import launched


class LiveBar:
    """A rich progress bar on stderr, shown while a `with` block runs; `_bar` is for the class that fills it."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        self._bar = Progress(*columns, console=Console(stderr=True), **options)

    def __enter__(self: _Shown) -> _Shown:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


_Shown = TypeVar("_Shown", bound=LiveBar)


class RunProgress(LiveBar):
    """Counts answers; shows the method just measured with its running MAT and tokens/s. Launched jobs show none."""

    def __init__(self, answers: int, labels: dict[str, str]) -> None:
        self._labels = labels
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # tokens, rounds, ms
        super().__init__(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            disable=launched(),
        )
        self._task = self._bar.add_task("", total=answers)

    def answered(self, row: dict) -> None:
        """Take one turn row."""
        text = row["status"]
        if row["status"] == "ok" and row["rounds"]:
            sums = self._sums[row["method"]]
            for index, value in enumerate((row["new_tokens"] - 1, row["rounds"], row["decode_ms"])):
                sums[index] += value
            text = f"MAT {sums[0] / sums[1]:.2f}, {1000 * sums[0] / sums[2]:.1f} tok/s"
        self._bar.update(self._task, advance=1, description=f"{self._labels[row['method']]}: {text}")
