"""Ctrl-C and SIGTERM, put off until the work at hand can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """Notes the first signal; a second one takes its usual effect at once. Outside the main thread it notes nothing."""

    def __init__(self) -> None:
        self._noted: int | None = None
        self._usual: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._usual[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    @property
    def noted(self) -> bool:
        return self._noted is not None

    def act(self) -> None:
        """End the process the way the noted signal asks for."""
        if self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        if self._noted is not None:
            raise SystemExit(128 + self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number
        self._restore()

    def _restore(self) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        self._usual = {}
