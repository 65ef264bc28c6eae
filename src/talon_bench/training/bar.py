"""A progress bar on stderr for one stage: what is done, the rate of this session, the time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """`done` of `total` `units` were there before this session."""

    def __init__(self, stage: str, total: int, units: str, done: int = 0) -> None:
        self._bar = Progress(
            TextColumn("{task.fields[stage]:9}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[units]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", total=total, completed=done, stage=stage, units=units)
        self._tokens = 0
        self._started = time.perf_counter()

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, tokens: int = 0) -> None:
        """Count one more unit, of so many tokens."""
        self._tokens += tokens
        rate = self._tokens / (time.perf_counter() - self._started)
        self._bar.update(self._task, advance=1, description=f"{rate:,.0f} tokens/s" if tokens else "")
