"""Spider's scorer: execution on read-only databases, exact-set match without them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spider_files import SCHEMA, SHARED, read_databases, read_dev, write_database
from talon_bench.errors import UsageError
from talon_bench.scoring import SCORERS, Answer, Score, ScoringConfig
from talon_bench.scoring.spider import SpiderScorer
from talon_bench.scoring.sql_child import same_rows
from talon_bench.scoring.sql_runner import Query, QueryPool, QueryRunner

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the one database `woods`."""
    folder = tmp_path_factory.mktemp("data")
    write_database(folder / "spider" / "database" / "woods" / "woods.sqlite")
    return folder


def scorer(root: Path, **settings: float) -> SpiderScorer:
    return SCORERS["spider"](ScoringConfig(enabled=True, workers=1, **settings), root)


def answer(text: str, gold: str, db_id: str = "woods") -> Answer:
    return Answer(text, {"db_id": db_id, "query": gold, "schema": json.dumps(SCHEMA)})


def run(root: Path, gold: str, text: str, **settings: float) -> Score:
    return scorer(root, **settings).score([answer(text, gold)])[0]


def sha256_of_files(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


EQUAL = [
    ("SELECT name FROM tree WHERE height > 25", "SELECT T.name FROM tree AS T WHERE NOT T.height <= 25"),
    ("SELECT name FROM tree WHERE height > 25", "SELECT name FROM tree WHERE height > 25 ORDER BY name DESC"),
    ("SELECT name, height FROM tree", "SELECT height, name FROM tree"),
    ("SELECT count(*) FROM tree", "SELECT sum(1) FROM tree"),
    ("SELECT avg(height) FROM tree", "SELECT sum(height) / count(height) FROM tree"),
    (
        "SELECT T2.name FROM tree AS T1 JOIN forest AS T2 ON T1.forest_id = T2.forest_id WHERE T1.name = 'oak'",
        'SELECT name FROM forest WHERE forest_id IN (SELECT forest_id FROM tree WHERE name = "oak")',
    ),
    ("SELECT name FROM tree ORDER BY id", "SELECT name FROM (SELECT * FROM tree) ORDER BY id ASC"),
    ("SELECT name, height FROM tree ORDER BY id", "SELECT height, name FROM tree ORDER BY id"),
    (
        "SELECT name FROM tree ORDER BY height DESC LIMIT 1",
        "SELECT name FROM tree WHERE height = (SELECT max(height) FROM tree)",
    ),
    ("SELECT name FROM tree WHERE height > 99", "SELECT id, name FROM tree WHERE height > 98"),
    ("SELECT name FROM forest EXCEPT SELECT name FROM forest WHERE country = 'Aland'", "SELECT 'South'"),
    (
        "SELECT name FROM tree WHERE height IS NULL",
        "WITH t AS (SELECT * FROM tree) SELECT name FROM t WHERE height IS NULL",
    ),
]
DIFFERENT = [
    ("SELECT name FROM tree WHERE height > 25", "SELECT name FROM tree WHERE height >= 20.5"),
    ("SELECT name FROM tree", "SELECT DISTINCT name FROM tree UNION ALL SELECT 'oak'"),
    ("SELECT height FROM tree", "SELECT DISTINCT height FROM tree"),
    ("SELECT name, height FROM tree", "SELECT name FROM tree"),
    ("SELECT name FROM tree ORDER BY id", "SELECT name FROM tree ORDER BY id DESC"),
    ("SELECT name, id FROM tree", "SELECT name, 6 - id FROM tree"),
    ("SELECT count(*) FROM tree", "SELECT count(height) FROM tree"),
    ("SELECT name FROM tree WHERE height > 99", "SELECT name FROM tree WHERE height > 35"),
    ("SELECT max(height) FROM tree", "SELECT '40'"),
]


@pytest.mark.parametrize(("gold", "text"), EQUAL)
def test_a_query_with_the_same_rows_is_right(root: Path, gold: str, text: str) -> None:
    assert run(root, gold, text) == Score(True, "passed", "execution")


@pytest.mark.parametrize(("gold", "text"), DIFFERENT)
def test_a_query_with_other_rows_is_wrong(root: Path, gold: str, text: str) -> None:
    assert run(root, gold, text) == Score(False, "wrong answer", "execution")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("I do not know.", "no query found"),
        ("", "no query found"),
        ("SELECT name FROM trees", "error: no such table"),
        ("SELECT title FROM tree", "error: no such column"),
        ("SELECT frob(name) FROM tree", "error: no such function"),
        ("SELECT name FROM tree JOIN forest", "error: ambiguous column name"),
        ("SELECT name FROM tree WHERE", "error: SQL"),
        ("SELECT name FROM FROM tree", "error: syntax error"),
        ("SELECT '\ud800'", "error: SQL"),
        ("```sql\n-- nothing\n```", "no query found"),
    ],
)
def test_a_failure_has_a_short_outcome_without_the_models_words(root: Path, text: str, outcome: str) -> None:
    """Also where the gold query has no rows, as a query that does not run has none either."""
    for gold in ("SELECT name FROM tree", "SELECT name FROM tree WHERE 0"):
        assert run(root, gold, text) == Score(False, outcome, "execution")


STOPPED = "timed out or out of memory"
"""By whichever limit a query meets first."""
HOSTILE = {
    "drop": ("```sql\nDROP TABLE tree\n```", "refused: not a read"),
    "delete": ("```sql\nDELETE FROM tree\n```", "refused: not a read"),
    "update": ("```sql\nUPDATE tree SET name = ''\n```", "refused: not a read"),
    "insert": ("```sql\nINSERT INTO tree SELECT * FROM tree\n```", "refused: not a read"),
    "create": ("```sql\nCREATE TEMP TABLE t AS SELECT 1\n```", "refused: not a read"),
    "attach": ("```sql\nATTACH DATABASE '{out}' AS other\n```", "refused: not a read"),
    "detach": ("```sql\nDETACH DATABASE main\n```", "refused: not a read"),
    "vacuum into": ("```sql\nVACUUM INTO '{out}'\n```", "refused: not a read"),
    "pragma": ("```sql\nPRAGMA writable_schema = ON\n```", "refused: not a read"),
    "heap limit off": ("```sql\nPRAGMA hard_heap_limit = 0\n```", "refused: not a read"),
    "pragma as a table": ("SELECT * FROM pragma_database_list", "refused: not a read"),
    "second statement": ("SELECT name FROM tree; DROP TABLE tree", "refused: several statements"),
    "second statement in a block": ("```sql\nSELECT name FROM tree;\n\nPRAGMA a\n```", "refused: several statements"),
    "load extension": ("SELECT load_extension('{out}')", "refused: not a read"),
    "write file": ("SELECT writefile('{out}', 'x') FROM tree", "error: no such function"),
    "read file": ("SELECT readfile('/etc/passwd') FROM tree", "error: no such function"),
    "edit": ("SELECT edit(name) FROM tree", "error: no such function"),
    "endless count": (f"{ENDLESS} SELECT count(*) FROM n", "timed out"),
    "endless sort": (f"{ENDLESS} SELECT x FROM n ORDER BY x", STOPPED),
    "endless rows": (f"{ENDLESS} SELECT x FROM n", "wrong answer"),
    "cross join": ("SELECT count(*) FROM " + ", ".join(f"tree t{number}" for number in range(40)), "timed out"),
    "random bytes": ("SELECT randomblob(1000000000)", "refused: not a read"),
    "zero bytes": ("SELECT hex(zeroblob(900000000)) FROM tree", "refused: not a read"),
    "doubling": (
        "WITH RECURSIVE n(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM n) SELECT max(length(x)) FROM n",
        STOPPED,
    ),
    "growing text": ("SELECT " + "replace(" * 9 + "'aaaaaaaaaa'" + ", 'a', 'aaaaaaaaaa')" * 9, STOPPED),
    "padding": ("SELECT printf('%.*c', 2000000000, 'x')", STOPPED),
    "deep nesting": ("SELECT " + "(" * 4000 + "1" + ")" * 4000, "error: SQL"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sql_fails_and_leaves_no_trace(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each also where the rows of its first part would be right; within the time limit, with the files as they were."""
    text, outcome = HOSTILE[name]
    before, started = sha256_of_files(root), time.monotonic()
    monkeypatch.chdir(tmp_path)
    found = run(
        root, "SELECT name FROM tree", text.replace("{out}", str(tmp_path / "out")), timeout_s=0.3, memory_mb=64
    )
    assert not found.correct
    assert found.outcome in outcome.split(" or ")
    assert time.monotonic() - started < 5
    assert sha256_of_files(root) == before
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_was_ended_is_replaced(root: Path) -> None:
    texts = [HOSTILE["padding"][0], "SELECT name FROM tree", HOSTILE["growing text"][0], "SELECT name FROM tree"]
    answers = [answer(text, "SELECT name FROM tree") for text in texts]
    for workers in (1, 3):
        pool = SCORERS["spider"](ScoringConfig(True, timeout_s=0.3, memory_mb=64, workers=workers), root)
        outcomes = [score.outcome for score in pool.score(answers)]
        assert outcomes[1::2] == ["passed", "passed"]
        assert set(outcomes[::2]) <= set(STOPPED.split(" or "))


def test_a_child_that_dies_while_it_waits_costs_no_query(root: Path) -> None:
    query = Query(root / "spider" / "database" / "woods" / "woods.sqlite", "SELECT 1", "SELECT 1")
    with QueryRunner(5, 64) as runner:
        assert runner.run(query) == "passed"
        runner._child.kill()
        runner._child.wait()
        assert runner.run(query) == "passed"
        child = runner._child
    assert child.poll() is not None, "nothing outlives the runner"


def test_a_child_that_dies_at_work_fails_its_query(root: Path) -> None:
    query = Query(root / "spider" / "database" / "woods" / "woods.sqlite", "SELECT 1", HOSTILE["endless count"][0])
    with QueryRunner(60, 64) as runner:
        threading.Timer(0.3, runner._child.kill).start()
        assert runner.run(query) == "killed"


def test_every_guard_is_reported(root: Path) -> None:
    guards = scorer(root).guards()
    assert {"time", "read-only database", "statements", "empty folder", "memory", "file size"} <= set(guards)
    assert set(guards.values()) == {True}


def test_a_gold_query_that_fails_is_the_users_error(root: Path) -> None:
    with pytest.raises(
        UsageError, match=r"the gold query of woods.sqlite fails \(error: no such table\): SELECT 1 FROM x"
    ):
        run(root, "SELECT 1 FROM x", "SELECT 1")


def test_the_first_error_stops_the_other_workers(root: Path) -> None:
    """As an interruption does: the second worker ends with the query that it is at."""
    slow = Query(root / "spider" / "database" / "woods" / "woods.sqlite", "SELECT 1", HOSTILE["endless count"][0])
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"^the gold query of woods"):
        QueryPool(0.4, 64, 2).run([slow, replace(slow, gold="SELECT x"), *[slow] * 20])
    assert time.monotonic() - started < 4


def test_scoring_without_databases_says_what_to_set(tmp_path: Path) -> None:
    config = ScoringConfig(enabled=True)
    with pytest.raises(UsageError, match=r"^scoring Spider needs its databases: set data.root to"):
        SCORERS["spider"](config, None)
    with pytest.raises(UsageError, match=r"^data.root has no spider/database: take the folder"):
        SCORERS["spider"](config, tmp_path)
    (tmp_path / "spider" / "database").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"^field 'db_id': expected the name of a database, found '../woods'"):
        SCORERS["spider"](config, tmp_path).score([answer("SELECT 1", "SELECT 1", "../woods")])


@given(
    st.lists(st.tuples(*[st.sampled_from([None, 0, 1, 1.5, "a", "b"])] * 3), max_size=6),
    st.permutations(range(3)),
    st.randoms(use_true_random=False),
)
def test_rows_equal_under_any_order_of_columns_and_rows(rows: list[tuple], places: list[int], random) -> None:
    moved = [tuple(row[place] for place in places) for row in rows]
    assert same_rows(rows, moved, ordered=True)
    random.shuffle(moved)
    assert same_rows(rows, moved, ordered=False)
    assert same_rows(moved, rows, ordered=False)


@given(*[st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=1, max_size=4)] * 2)
def test_columns_are_matched_exactly_when_some_order_fits(gold: list[tuple], found: list[tuple]) -> None:
    orders = [[tuple(row[place] for place in places) for row in found] for places in permutations(range(3))]
    assert same_rows(gold, found, ordered=True) == (gold in orders)
    assert same_rows(gold, found, ordered=False) == (sorted(gold) in [sorted(order) for order in orders])


def test_clauses_decide_where_a_database_is_missing(root: Path) -> None:
    gold = "SELECT name FROM tree WHERE height > 20"
    texts = ["SELECT name FROM tree WHERE height > 9", "SELECT name FROM tree", "nothing", "SELECT FROM tree WHERE"]
    scores = scorer(root).score([answer(text, gold, "jungle") for text in texts])
    assert [(score.correct, score.outcome) for score in scores] == [
        *((True, "passed"), (False, "wrong answer"), (False, "no query found"), (False, "error: no single query")),
    ]
    assert {score.how for score in scores} == {"exact set"}


def test_every_gold_query_is_right() -> None:
    folder = read_databases()
    before = sha256_of_files(folder)
    answers = [
        Answer(row["query"], {"db_id": row["db_id"], "query": row["query"], "schema": json.dumps(row["tables"])})
        for row in read_dev()
    ]
    scores = scorer(SHARED).score(answers)
    assert Counter((score.correct, score.how) for score in scores) == {
        (True, "execution"): 972,
        (True, "exact set"): 62,
    }
    assert sha256_of_files(folder) == before


def test_real_hostile_answers_leave_the_real_databases_alone() -> None:
    file = read_databases() / "singer" / "singer.sqlite"
    before = sha256_of_files(file.parent)
    statements = ["DROP TABLE singer", "DELETE FROM singer", "VACUUM", "PRAGMA user_version = 9", "REINDEX"]
    outcomes = QueryPool(1, 64, 1).run([Query(file, "SELECT name FROM singer", statement) for statement in statements])
    assert set(outcomes) == {"refused: not a read"}
    assert sha256_of_files(file.parent) == before
