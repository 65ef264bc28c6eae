"""The Spider of the tests: a schema and a database written for them, and the real files where they are there."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("TALON_BENCH_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"
TABLES = """
CREATE TABLE tree (id INTEGER PRIMARY KEY, name TEXT, height REAL, forest_id INTEGER);
CREATE TABLE forest (forest_id INTEGER PRIMARY KEY, name TEXT, country TEXT);
INSERT INTO forest VALUES (1, 'North', 'Aland'), (2, 'South', 'Beland'), (3, 'Bare', 'Aland');
INSERT INTO tree VALUES (1, 'oak', 20.5, 1), (2, 'elm', 30, 1), (3, 'ash', 20.5, 2), (4, 'fir', 40, 2), (5, 'yew', NULL, 2);
"""
SCHEMA = {
    "db_id": "woods",
    "table_names_original": ["Tree", "forest"],
    "column_names_original": [
        *([-1, "*"], [0, "id"], [0, "Name"], [0, "height"], [0, "forest_id"]),
        *([1, "forest_id"], [1, "name"], [1, "country"]),
    ],
    "foreign_keys": [[4, 5]],
}


def write_database(file: Path) -> None:
    file.parent.mkdir(parents=True)
    with sqlite3.connect(file) as connection:
        connection.executescript(TABLES)
    connection.close()


def read_dev() -> list[dict]:
    """Rows of the real dev set, each with its database's entry of tables.json under `tables`; skips without the files."""
    if not (SHARED / "spider" / "dev.json.gz").is_file():
        pytest.skip("the Spider files are not there")
    tables = {entry["db_id"]: entry for entry in json.loads((SHARED / "spider" / "tables.json").read_text())}
    rows = json.loads(gzip.decompress((SHARED / "spider" / "dev.json.gz").read_bytes()))
    return [{**row, "tables": tables[row["db_id"]]} for row in rows]


def read_databases() -> Path:
    """The folder of the real databases; skips without it."""
    folder = SHARED / "spider" / "database"
    if not folder.is_dir():
        pytest.skip("the Spider databases are not there")
    return folder
