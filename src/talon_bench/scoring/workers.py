"""Several child processes at work on one list of tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

Task = TypeVar("Task", contravariant=True)


class Worker(Protocol[Task]):
    """Runs tasks one after another."""

    def run(self, task: Task) -> str: ...


def run_all(
    tasks: Sequence[Task], workers: int, start: Callable[[], AbstractContextManager[Worker[Task]]]
) -> list[str]:
    """Outcomes in the order of the tasks. Each of at most `workers` workers takes the next task as soon as it is free."""
    waiting = iter(enumerate(tasks))
    outcomes = [""] * len(tasks)
    stop = threading.Event()

    def work() -> None:
        with start() as worker:
            for place, task in waiting:
                if stop.is_set():
                    return
                outcomes[place] = worker.run(task)

    count = min(workers, len(tasks))
    with ThreadPoolExecutor(max(count, 1)) as threads:
        futures = [threads.submit(work) for _ in range(count)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            # After an error or an interruption no worker should go on to its next task.
            stop.set()
        for future in futures:
            future.result()
    return outcomes
