"""What an examination says: one line for each thing looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """`found` on what `subject`; for a warning or a fault also what was `expected`, and the `fix`."""

    level: Level
    subject: str
    found: str
    expected: str = ""
    fix: str = ""

    @property
    def line(self) -> str:
        """The finding as one line."""
        expected = f"; expected {self.expected}" if self.expected else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.level:8}{self.subject}: {self.found}{expected}{fix}"


def worst(levels: Iterable[Level]) -> Level:
    """The worst of some levels, ok of none."""
    found = set(levels)
    return next((level for level in ("fault", "warning") if level in found), "ok")


def ok(subject: str, found: str) -> Finding:
    return Finding("ok", subject, found)


def warning(subject: str, found: str, expected: str = "", fix: str = "") -> Finding:
    return Finding("warning", subject, found, expected, fix)


def fault(subject: str, found: str, expected: str = "", fix: str = "") -> Finding:
    return Finding("fault", subject, found, expected, fix)
