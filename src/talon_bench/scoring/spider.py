"""Spider (Yu et al. 2018, arXiv:1809.08887): execution accuracy on its SQLite databases.

Two queries agree when they return the same rows. Where a database is missing, their clauses are compared instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.scoring.base import Answer, Score
from talon_bench.scoring.config import ScoringConfig
from talon_bench.scoring.exact_set import Schema, exact_set_match
from talon_bench.scoring.sql import extract_sql, parse_query
from talon_bench.scoring.sql_runner import Query, QueryPool

DATABASES = "spider/database"
"""Under the data root, in the layout that Spider is published in: `<db_id>/<db_id>.sqlite`."""

_NAME = re.compile(r"\w[\w-]*")


def make_scorer(config: ScoringConfig, root: Path | None) -> SpiderScorer:
    """UsageError without a data root, or without the folder of databases in it."""
    if root is None:
        raise UsageError(f"scoring Spider needs its databases: set data.root to the folder that holds {DATABASES}")
    if not (root / DATABASES).is_dir():
        raise UsageError(
            f"data.root has no {DATABASES}: take the folder `database` from the Spider zip (taoyds/spider), or leave scoring off"
        )
    return SpiderScorer(root / DATABASES, QueryPool(config.timeout_s, config.memory_mb, config.workers))


class SpiderScorer:
    """`folder` holds a folder per database, `pool` runs the queries."""

    name = "execution accuracy"

    def __init__(self, folder: Path, pool: QueryPool) -> None:
        self._folder = folder
        self._pool = pool

    def guards(self) -> dict[str, bool]:
        """Those of the processes that run SQL."""
        return self._pool.guards()

    def score(self, answers: Sequence[Answer]) -> list[Score]:
        """By execution where the database is there, else by exact-set match; `how` says which."""
        scores: dict[int, Score] = {}
        queries: dict[int, Query] = {}
        for number, answer in enumerate(answers):
            database, query = self._database(answer.reference["db_id"]), extract_sql(answer.text)
            if query is None:
                scores[number] = Score(False, "no query found", "execution" if database else "exact set")
            elif database:
                queries[number] = Query(database, answer.reference["query"], query)
            else:
                scores[number] = _by_clauses(answer, query)
        outcomes = self._pool.run(list(queries.values()))
        for number, outcome in zip(queries, outcomes, strict=True):
            scores[number] = Score(outcome == "passed", outcome, "execution")
        return [scores[number] for number in range(len(answers))]

    def _database(self, name: str) -> Path | None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"field 'db_id': expected the name of a database, found {name!r}; correct the row")
        file = self._folder / name / f"{name}.sqlite"
        return file if file.is_file() else None


def _by_clauses(answer: Answer, query: str) -> Score:
    if parse_query(query) is None:
        return Score(False, "error: no single query", "exact set")
    schema = Schema.read(answer.reference["schema"])
    equal = exact_set_match(answer.reference["query"], query, schema)
    return Score(equal, "passed" if equal else "wrong answer", "exact set")
