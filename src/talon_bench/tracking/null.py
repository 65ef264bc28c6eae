"""Tracking off: the same interface, no effect."""

from __future__ import annotations

from pathlib import Path


class NullTracker:
    """Base of all trackers; each method may be called in any run and does nothing here."""

    def __enter__(self) -> NullTracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def prompt(self, number: int, turns: list[dict]) -> None:
        """One prompt is measured and on disk: its turn rows."""

    def finish(self, run: Path) -> None:
        """The run folder is complete."""
