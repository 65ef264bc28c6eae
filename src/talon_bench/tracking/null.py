"""Tracking off: the same interface, no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from talon_bench.records import RunFolder


class NullTracker:
    """Base of all trackers; each method may be called in any run and does nothing here."""

    def __enter__(self) -> NullTracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, folder: RunFolder) -> None:
        """The run is about to be measured, or resumed: run.json is written, and some prompts may be done."""

    def prompt(self, number: int, turns: list[dict]) -> None:
        """One prompt is measured and on disk: its turn rows."""

    def finish(self, folder: RunFolder) -> None:
        """The run folder is complete, scores included; also called for one that was complete before."""
