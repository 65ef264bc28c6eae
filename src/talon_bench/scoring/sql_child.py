"""The child process that runs SQL: `python -I sql_child.py TIMEOUT_S MEMORY_MB`, standard library alone.

It first takes rights away from itself, and says in one line of JSON which guards hold. Then it answers each line
`{"database", "gold", "query"}` on stdin with one line `{"outcome"}`, or `{"gold_error"}` where the gold query itself fails.
A query that no guard inside SQLite can stop ends the process: SIGALRM, or the parent.
"""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
"""All that a query may do, apart from calling functions."""
FORBIDDEN = frozenset(("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "randomblob", "zeroblob"))
"""Functions that reach outside the database, or make memory out of nothing."""
STEPS = 1000
"""SQLite instructions between two looks at the clock."""
GRACE_S = 1.0
"""Beyond the time limit, for SQLite to stop by itself before the process is ended."""


class TooMany(Exception):
    """More rows than the gold query has."""


def limit_process(memory: int) -> dict[str, bool]:
    """Limit this process for good; which limits the system took."""
    wanted = {
        "memory": (resource.RLIMIT_AS, memory),
        "file size": (resource.RLIMIT_FSIZE, 0),
        "open files": (resource.RLIMIT_NOFILE, 16),
        "processes": (resource.RLIMIT_NPROC, 0),
        "no core dumps": (resource.RLIMIT_CORE, 0),
    }
    return {name: _limit(kind, value) for name, (kind, value) in wanted.items()}


def _limit(kind: int, value: int) -> bool:
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):
        return False
    return True


def connect(database: str, heap: int) -> tuple[sqlite3.Connection, list[str]]:
    """A connection that can only read, and the list to which refused attempts are added.

    Nothing is ever written, not even temporary files; bytes that are no UTF-8 are dropped, as Spider's evaluation does.
    """
    uri = f"{Path(database).as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = lambda raw: raw.decode(errors="ignore")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit = {heap}")
    connection.execute("PRAGMA query_only = ON")
    refused: list[str] = []

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in READS or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in FORBIDDEN):
            return sqlite3.SQLITE_OK
        refused.append(second or first or "statement")
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
    return connection, refused


def rows_of(connection: sqlite3.Connection, query: str, timeout: float, most: int | None = None) -> list[tuple]:
    """Rows of one statement; TooMany beyond `most`. SIGALRM ends the process where SQLite does not look at the clock."""
    end = time.monotonic() + timeout
    connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
    cursor = connection.execute(query)
    if cursor.description is None:
        raise sqlite3.ProgrammingError("no such query")
    rows = []
    for row in cursor:
        rows.append(row)
        if most is not None and len(rows) > most:
            raise TooMany
    return rows


def same_rows(gold: list[tuple], found: list[tuple], ordered: bool) -> bool:
    """Whether some order of the columns makes `found` equal to `gold`: as lists if `ordered`, else as multisets of rows.

    As in Spider's test-suite evaluation (Zhong et al. 2020, arXiv:2010.02840), so two results without a row are equal.
    """
    if not gold and not found:
        return True
    if len(gold) != len(found) or len(gold[0]) != len(found[0]):
        return False
    wanted, offered = list(zip(*gold, strict=True)), list(zip(*found, strict=True))
    if ordered:
        return Counter(wanted) == Counter(offered)
    values = [Counter(column) for column in offered]
    fits = [[place for place, value in enumerate(values) if value == Counter(column)] for column in wanted]
    return _columns_fit(wanted, offered, fits, [])


def _columns_fit(wanted: list[tuple], offered: list[tuple], fits: list[list[int]], chosen: list[int]) -> bool:
    """Extend the columns chosen for the first of `wanted` to all of them, keeping the rows so far equal as multisets."""
    width = len(chosen)
    if width == len(wanted):
        return True
    rows = Counter(zip(*wanted[: width + 1], strict=True))
    return any(
        Counter(zip(*(offered[other] for other in [*chosen, place]), strict=True)) == rows
        and _columns_fit(wanted, offered, fits, [*chosen, place])
        for place in fits[width]
        if place not in chosen
    )


def failure(error: Exception, refused: list[str]) -> str:
    """The outcome that an exception of `rows_of` stands for, without any of the query's own words."""
    message = str(error)
    if isinstance(error, TooMany):
        return "wrong answer"
    if refused:
        return "refused: not a read"
    if isinstance(error, MemoryError):
        return "out of memory"
    if "one statement" in message:
        return "refused: several statements"
    if message == "interrupted":
        return "timed out"
    if message.endswith("syntax error"):
        return "error: syntax error"
    kind = message.partition(":")[0]
    return f"error: {kind}" if kind.startswith("no such ") or kind == "ambiguous column name" else "error: SQL"


def answer(request: dict[str, str], timeout: float, heap: int) -> dict[str, str]:
    """Run the gold query, then the other, and compare."""
    connection, refused = connect(request["database"], heap)
    try:
        try:
            gold = _timed(timeout, lambda: rows_of(connection, request["gold"], timeout))
        except (sqlite3.Error, sqlite3.Warning, MemoryError) as error:
            return {"gold_error": failure(error, refused)}
        ordered = "order by" in " ".join(request["gold"].lower().split())
        try:
            equal = _timed(
                timeout, lambda: same_rows(gold, rows_of(connection, request["query"], timeout, len(gold)), ordered)
            )
        except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError, TooMany) as error:
            return {"outcome": failure(error, refused)}
        return {"outcome": "passed" if equal else "wrong answer"}
    finally:
        connection.close()


def _timed(timeout: float, action: Callable) -> object:
    signal.setitimer(signal.ITIMER_REAL, timeout + GRACE_S)
    try:
        return action()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    timeout, memory = float(sys.argv[1]), int(sys.argv[2]) << 20
    guards = limit_process(memory)
    print(json.dumps({"guards": guards}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), timeout, memory // 2)), flush=True)


if __name__ == "__main__":
    main()
