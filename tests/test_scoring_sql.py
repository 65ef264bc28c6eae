"""The SQL in a model's answer, and exact-set match of two queries."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spider_files import SCHEMA, read_dev
from talon_bench.scoring.exact_set import Schema, clause_sets, exact_set_match
from talon_bench.scoring.sql import LONGEST, extract_sql

ANSWERS = [
    ("SELECT a FROM b", "SELECT a FROM b"),
    ("Sure:\n```sql\n-- all\nSELECT a\n\nFROM b;\n```\nIt lists a.", "SELECT a\n\nFROM b"),
    ("```python\nx = 1\n```\n```SQL\nSELECT a FROM b\n```", "SELECT a FROM b"),
    ("```\nselect a from b", "select a from b"),
    ("```sql\ncount(*) FROM b\n```", "SELECT count(*) FROM b"),
    ("SELECT a FROM b; This lists a.", "SELECT a FROM b"),
    ("SELECT a FROM b;\nSELECT a FROM b;", "SELECT a FROM b"),
    ("SELECT a\nFROM b\n\nThis lists a.", "SELECT a\nFROM b"),
    ("SELECT a FROM b WHERE c = ';\n\n' ; x", "SELECT a FROM b WHERE c = ';\n\n'"),
    ("count(*) FROM b", "SELECT count(*) FROM b"),
    ("DISTINCT a FROM b WHERE a IN (SELECT a FROM c);\n```", "SELECT DISTINCT a FROM b WHERE a IN (SELECT a FROM c)"),
    ("To select a, write:\n  SELECT a FROM b", "SELECT a FROM b"),
    ("To select a with b, write SELECT a FROM b", "SELECT a FROM b"),
    ("The query is `SELECT a FROM b`, which lists a.", "SELECT a FROM b"),
    ("You can use the SELECT statement with COUNT: `SELECT count(*) FROM singer`.", "SELECT count(*) FROM singer"),
    ("Use `SELECT` and `SELECT DISTINCT`, as in ``SELECT DISTINCT `a` FROM b;``", "SELECT DISTINCT `a` FROM b"),
    ("Of the table,\nselect the rows with `SELECT a FROM b`.", "SELECT a FROM b"),
    ("Use `WITH c AS (SELECT a FROM b) SELECT a FROM c`", "WITH c AS (SELECT a FROM b) SELECT a FROM c"),
    ("A `subquery` helps: SELECT `a` FROM `b`", "SELECT `a` FROM `b`"),
    ("As SELECT goes, `SELECT 1` is one.", "SELECT 1"),
    ("The answer is `SELECT a FROM b WHERE", "SELECT a FROM b WHERE"),
    ("Sure:\nSELECT a FROM b\n\nHere `SELECT c FROM d` is not needed.", "SELECT a FROM b"),
    ("WITH c AS (SELECT a FROM b) SELECT a FROM c", "WITH c AS (SELECT a FROM b) SELECT a FROM c"),
    ("I would start with c AS (a letter).", None),
    ("SELECT a FROM b;\nCreate an index if it is slow.", "SELECT a FROM b"),
    ("SELECT a FROM b;\n\nDROP TABLE b", "SELECT a FROM b;\n\nDROP TABLE b"),
    ("```sql\n```", None),
    ("Sorry.", None),
]


@pytest.mark.parametrize(("text", "query"), ANSWERS)
def test_the_query_is_found_in_the_answer(text: str, query: str | None) -> None:
    assert extract_sql(text) == query


@given(st.text(alphabet="SELECTWITHAS abc;`'\"\n()-/*.,", max_size=200))
def test_any_text_gives_a_query_or_none(text: str) -> None:
    query = extract_sql(text)
    assert query is None or (query.strip() == query != "" and "```" not in query.replace("'", '"').split('"')[0])


@pytest.mark.parametrize(
    "part", ["(", "'", "[", "/*", "WITH a(", "SELECT ", "\n", "```\n", "a FROM (SELECT ", "CASE WHEN "]
)
def test_a_long_answer_is_read_in_no_time(part: str) -> None:
    started = time.monotonic()
    extract_sql(part * LONGEST)
    exact_set_match("SELECT 1", part * LONGEST, Schema.read(json.dumps(SCHEMA)))
    assert time.monotonic() - started < 2


def test_a_statement_that_the_parser_does_not_know_is_quietly_no_query(capfd: pytest.CaptureFixture[str]) -> None:
    schema = Schema.read(json.dumps(SCHEMA))
    for statement in ("ALTER TABLE tree ADD", "EXPLAIN SELECT 1", "VACUUM INTO 'x'", "REINDEX", "CREATE TRIGGER t"):
        assert not exact_set_match("SELECT 1", statement, schema)
    assert capfd.readouterr() == ("", "")


SAME_CLAUSES = [
    ("SELECT name FROM tree WHERE height > 20", "select NAME from TREE where HEIGHT > 30"),
    ("SELECT name, id FROM tree", "SELECT T1.id, T1.name FROM tree AS T1"),
    ("SELECT count(DISTINCT name) FROM tree", "SELECT DISTINCT count(name) AS n FROM tree"),
    (
        "SELECT id FROM tree WHERE name = 'oak' AND height = 1",
        'SELECT id FROM tree WHERE (height = 2) AND (name = "elm")',
    ),
    (
        "SELECT T1.name FROM tree AS T1 JOIN forest AS T2 ON T1.forest_id = T2.forest_id GROUP BY T2.forest_id",
        "SELECT T2.name FROM forest AS T1 JOIN tree AS T2 ON T2.forest_id = T1.forest_id GROUP BY T2.forest_id",
    ),
    ("SELECT name FROM forest WHERE forest_id IN (1, 2)", "SELECT name FROM forest WHERE forest_id IN (4, 5, 6)"),
    ("SELECT name FROM tree ORDER BY height DESC LIMIT 3", "SELECT name FROM tree ORDER BY tree.height DESC LIMIT 1"),
    (
        "SELECT country, count(*) FROM forest GROUP BY country ORDER BY count(*)",
        "SELECT count(*) AS n, country FROM forest GROUP BY country ORDER BY n",
    ),
    ("SELECT name FROM forest WHERE name NOT LIKE '%a'", "SELECT name FROM forest WHERE NOT name LIKE 'b%'"),
    (
        "SELECT name FROM tree EXCEPT SELECT name FROM forest WHERE forest_id = 1",
        "SELECT tree.name FROM tree EXCEPT SELECT forest.name FROM forest WHERE forest_id = 2",
    ),
    (
        "SELECT T1.name FROM tree AS T1 JOIN forest AS T2",
        "SELECT a.name FROM (tree AS a JOIN forest AS b)",
    ),
    ("SELECT id FROM tree WHERE height > 1", "SELECT id FROM (tree) WHERE height > 2"),
]
OTHER_CLAUSES = [
    ("SELECT name FROM tree", "SELECT name, id FROM tree"),
    ("SELECT name FROM tree", "SELECT name FROM forest"),
    ("SELECT max(height) FROM tree", "SELECT min(height) FROM tree"),
    ("SELECT name FROM tree WHERE height > 1", "SELECT name FROM tree WHERE height >= 1"),
    ("SELECT name FROM tree WHERE height > 1", "SELECT name FROM tree"),
    ("SELECT id FROM tree WHERE name = 'a' AND id = 1", "SELECT id FROM tree WHERE name = 'a' OR id = 1"),
    ("SELECT name FROM tree WHERE height IN (SELECT 1)", "SELECT name FROM tree WHERE height NOT IN (SELECT 1)"),
    (
        "SELECT name FROM tree WHERE id IN (SELECT id FROM tree WHERE height > 1)",
        "SELECT name FROM tree WHERE id IN (SELECT id FROM tree WHERE height < 1)",
    ),
    ("SELECT name FROM tree ORDER BY height, id", "SELECT name FROM tree ORDER BY id, height"),
    ("SELECT name FROM tree ORDER BY height", "SELECT name FROM tree ORDER BY height DESC"),
    ("SELECT name FROM tree ORDER BY height LIMIT 1", "SELECT name FROM tree ORDER BY height"),
    ("SELECT country FROM forest GROUP BY country", "SELECT country FROM forest GROUP BY country HAVING count(*) > 1"),
    ("SELECT name FROM tree UNION SELECT name FROM forest", "SELECT name FROM tree INTERSECT SELECT name FROM forest"),
    ("SELECT name FROM tree JOIN forest", "SELECT name FROM tree LEFT JOIN forest"),
    ("SELECT name FROM tree", "DROP TABLE tree"),
    ("SELECT name FROM tree", "SELECT name FROM tree; SELECT name FROM tree"),
    ("SELECT name FROM tree", "SELECT name FROM tree WHERE " + "(" * 400 + "1" + ")" * 400),
]


@pytest.mark.parametrize(
    ("gold", "query", "equal"), [(*pair, True) for pair in SAME_CLAUSES] + [(*pair, False) for pair in OTHER_CLAUSES]
)
def test_exact_set_match_compares_clauses_without_values(gold: str, query: str, equal: bool) -> None:
    schema = Schema.read(json.dumps(SCHEMA))
    assert exact_set_match(gold, query, schema) is equal
    assert exact_set_match(gold, gold, schema)


UNUSUAL = """
SELECT 1
SELECT * FROM (VALUES (1,2)) AS t
SELECT a, row_number() OVER (PARTITION BY b ORDER BY c) FROM tree
SELECT CASE WHEN a > 1 THEN 'x' ELSE "y" END FROM tree
SELECT * FROM (tree JOIN forest ON tree.id = forest.id)
SELECT * FROM (SELECT * FROM tree) JOIN (SELECT id FROM forest) AS f USING (id)
SELECT T1.* FROM tree AS T1
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT * FROM n
(SELECT id FROM tree) UNION (SELECT id FROM forest) ORDER BY 1 LIMIT 1 OFFSET 2
SELECT id FROM tree WHERE EXISTS (SELECT 1 FROM forest WHERE forest.id = tree.id)
SELECT id FROM tree WHERE name IS NOT NULL AND NOT (id > 1 OR id < -1) AND id BETWEEN 1 AND 2
SELECT CAST(id AS INT), count(*) FILTER (WHERE id > 1) FROM tree GROUP BY 1, id COLLATE NOCASE HAVING sum(id) > 1
SELECT name -> '$.a', name || 'x', -id, +id, ~id, id & 1, id << 1 FROM tree
SELECT id FROM tree WHERE (id, name) IN (SELECT id, name FROM forest)
SELECT id FROM tree, forest NATURAL JOIN tree AS t
SELECT id FROM main.tree WHERE [name] = `id` AND "Name" = "x"
SELECT count(DISTINCT id, name) FROM tree
SELECT DISTINCT id AS x, x + 1 FROM tree ORDER BY x DESC NULLS LAST
SELECT date('now'), strftime('%Y', name), ifnull(id, 0), substr(name, 1, 2), group_concat(name, ',') FROM tree
SELECT id FROM tree WHERE id = (SELECT max(id) FROM forest) LIMIT (SELECT 1)
SELECT EXISTS (SELECT 1)
SELECT id FROM tree INTERSECT SELECT id FROM forest EXCEPT SELECT 1 UNION ALL SELECT 2
SELECT id FROM json_each('[1]')
SELECT id FROM tree WINDOW w AS (PARTITION BY id)
SELECT id FROM tree WHERE name GLOB 'a*' OR name REGEXP 'a' OR name MATCH 'b'
SELECT iif(id > 1, 'a', 'b') FROM tree INDEXED BY x
SELECT a.b.c FROM tree
SELECT id FROM tree t LEFT OUTER JOIN forest f ON t.id = f.id CROSS JOIN forest
""".strip().split("\n")


def test_sql_beyond_spiders_own_is_equal_to_itself_alone() -> None:
    schema = Schema.read(json.dumps(SCHEMA))
    for first in UNUSUAL:
        assert [second for second in UNUSUAL if exact_set_match(first, second, schema)] == [first]


def test_exact_sets_agree_with_spiders_own_parse() -> None:
    """All pairs of gold queries of a database: equal by our clauses exactly when equal by the parses in dev.json."""
    by_database: dict[str, list[dict]] = {}
    for row in read_dev():
        by_database.setdefault(row["db_id"], []).append(row)
    pairs = equal = 0
    for rows in by_database.values():
        schema, keys = Schema.read(json.dumps(rows[0]["tables"])), common_keys(rows[0]["tables"]["foreign_keys"])
        found = [(clause_sets(row["query"], schema), own_clauses(row["sql"], keys)) for row in rows]
        assert None not in [clauses for clauses, _ in found]
        for (clauses, parse), (other_clauses, other_parse) in combinations(found, 2):
            assert (clauses == other_clauses) == (parse == other_parse)
            pairs += 1
            equal += parse == other_parse
    assert (pairs, equal) == (34_986, 517)


def common_keys(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    keys: dict[int, int] = {}
    for pair in pairs:
        group = {column for column, key in keys.items() if key in {keys.get(end, end) for end in pair}} | set(pair)
        keys |= dict.fromkeys(group, min(group))
    return keys


def own_clauses(sql: dict | None, keys: dict[int, int]) -> Hashable:
    """Spider's parse of a query with values, DISTINCT and the order inside clauses gone."""
    if sql is None:
        return None

    def unit(value: list | None) -> Hashable:
        columns = [column and (column[0], keys.get(column[1], column[1])) for column in value[1:]]
        return (value[0], *columns)

    def condition(value: list) -> Hashable:
        nested = [own_clauses(part, keys) if isinstance(part, dict) else None for part in value[3:]]
        return (value[0], value[1], unit(value[2]), *nested)

    def bag(items: Iterable[Hashable]) -> Hashable:
        return frozenset(Counter(items).items())

    tables = [own_clauses(part, keys) if isinstance(part, dict) else part for _, part in sql["from"]["table_units"]]
    order = sql["orderBy"] and (sql["orderBy"][0], *(unit(value) for value in sql["orderBy"][1]))
    return (
        bag((aggregate, unit(value)) for aggregate, value in sql["select"][1]),
        bag(tables),
        *((bag(map(condition, sql[name][::2])), frozenset(sql[name][1::2])) for name in ("where", "having")),
        bag((column[0], keys.get(column[1], column[1])) for column in sql["groupBy"]),
        tuple(order),
        sql["limit"] is not None,
        *(own_clauses(sql[name], keys) for name in ("intersect", "union", "except")),
    )
