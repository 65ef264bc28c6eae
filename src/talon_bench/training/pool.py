"""Parts of a stage, worked off in this process or in several; what is done stays done whenever it is stopped."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed

from talon_bench.training.bar import Bar


def work_off(
    stage: str, parts: list[int], total: int, start: Callable, arguments: tuple, workers: int, units: str = "parts"
) -> None:
    """Call `start(*arguments)` once in every process, and what it returns with the number of each part.

    That function returns the tokens of the part, for the bar. Which process does which part must not matter for its bytes.
    """
    if not parts:
        return
    with Bar(stage, total, units, done=total - len(parts)) as bar:
        if workers == 1:
            work = start(*arguments)
            for number in parts:
                bar.advance(work(number))
            return
        with ProcessPoolExecutor(
            min(workers, len(parts)), multiprocessing.get_context("spawn"), _begin, (start, arguments)
        ) as pool:
            try:
                for done in as_completed([pool.submit(_one, number) for number in parts]):
                    bar.advance(done.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


_work: list[Callable[[int], int]] = []
"""What this worker process does with a part."""


def _begin(start: Callable, arguments: tuple) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work.append(start(*arguments))


def _one(number: int) -> int:
    return _work[0](number)


def _end_with_parent() -> None:
    """A worker of a killed process would wait for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)
