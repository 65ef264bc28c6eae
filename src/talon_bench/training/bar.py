"""A progress bar on stderr for one stage: what is done, the rate of this session, the time left."""

from __future__ import annotations

import time

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from talon_bench.progress import LiveBar


class Bar(LiveBar):
    """`done` of `total` `units` were there before this session."""

    def __init__(self, stage: str, total: int, units: str, done: int = 0) -> None:
        super().__init__(
            TextColumn("{task.fields[stage]:9}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[units]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.description}"),
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", total=total, completed=done, stage=stage, units=units)
        self._tokens = 0
        self._started = time.perf_counter()

    def advance(self, tokens: int = 0) -> None:
        """Count one more unit, of so many tokens."""
        self._tokens += tokens
        rate = self._tokens / (time.perf_counter() - self._started)
        self._bar.update(self._task, advance=1, description=f"{rate:,.0f} tokens/s" if tokens else "")
