"""Spider (Yu et al. 2018, arXiv:1809.08887): 1,034 questions of its dev set on 20 databases, the schema in the prompt.

The two forms are DAIL-SQL's (Gao et al. 2023, arXiv:2308.15363), zero-shot. It reads the CREATE TABLE texts from the
database files; here they are written from tables.json, which describes every database, with Spider's own column types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Companion, FromRow, Loader, Prompt, Row, Variant, each, text_field

_KEPT = ("db_id", "table_names_original", "column_names_original", "foreign_keys")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


def question(form: Callable[[str, Mapping[str, Any]], str]) -> FromRow:
    """One turn, the row's question and schema in `form`.

    `reference`: "db_id"; "query", the gold SQL; "schema", JSON of the database's names and foreign keys as in tables.json.
    """

    def from_row(row: Row, index: int) -> Prompt:
        name = text_field(row, "db_id")
        schema = row.get("schema")
        if schema is None:
            raise UsageError(f"field 'db_id': found no schema of {name} in tables.json")
        text, query = text_field(row, "question"), text_field(row, "query")
        try:
            turn = form(text, schema)
            kept = {key: schema[key] for key in _KEPT}
        except (KeyError, TypeError, IndexError, ValueError, AttributeError):
            raise UsageError(f"field 'db_id': the schema of {name} in tables.json is broken") from None
        reference = {"db_id": name, "query": query, "schema": json.dumps(kept)}
        return Prompt(f"spider-{index:04d}", "sql", (turn,), reference)

    return from_row


def code(text: str, schema: Mapping[str, Any]) -> str:
    """DAIL-SQL's code representation (SQLPrompt)."""
    tables = "\n\n".join(create_tables(schema))
    return f"/* Given the following database schema: */\n{tables}\n\n/* Answer the following: {text} */\nSELECT "


def openai(text: str, schema: Mapping[str, Any]) -> str:
    """The form of OpenAI's demonstration, as DAIL-SQL writes it (NumberSignPrompt)."""
    names = schema["table_names_original"]
    lines = [f"# {name}({', '.join(_columns(schema, number))})" for number, name in enumerate(names)]
    return "\n".join(
        [
            "### Complete sqlite SQL query only and with no explanation",
            "### SQLite SQL tables, with their properties:",
            "#",
            *lines,
            "#",
            f"### {text}",
            "SELECT ",
        ]
    )


def create_tables(schema: Mapping[str, Any]) -> list[str]:
    """A CREATE TABLE statement per table, with its primary and foreign keys."""
    columns = [(table, _quoted(name)) for table, name in schema["column_names_original"]]
    tables = [_quoted(name) for name in schema["table_names_original"]]
    statements = []
    for number, table in enumerate(tables):
        lines = [
            f"{name} {kind}"
            for (owner, name), kind in zip(columns, schema["column_types"], strict=True)
            if owner == number
        ]
        primary = [columns[key][1] for key in schema["primary_keys"] if columns[key][0] == number]
        if primary:
            lines.append(f"PRIMARY KEY ({', '.join(primary)})")
        for ours, theirs in schema["foreign_keys"]:
            owner, name = columns[theirs]
            if columns[ours][0] == number:
                lines.append(f"FOREIGN KEY ({columns[ours][1]}) REFERENCES {tables[owner]}({name})")
        statements.append(f"CREATE TABLE {table} (\n  " + ",\n  ".join(lines) + "\n);")
    return statements


def _columns(schema: Mapping[str, Any], table: int) -> list[str]:
    return [name for owner, name in schema["column_names_original"] if owner == table]


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


LOADER = Loader(
    variants={"code": Variant(each(question(code))), "openai": Variant(each(question(openai)))},
    published_sha256=frozenset(
        {
            "eefe88540ce6b54cdaa1bbc94adaaddb667261ec5b35170c6213baa5a2386e38",
            "30d64a3fccde493226df79687aed9e4a1c0129525baf44f29c0573d914d758a4",
        }
    ),
    obtain="take evaluation_examples/examples/dev.json from the project taoyds/spider",
    licence="CC BY-SA 4.0",
    companion=Companion(
        files=("spider/tables.json", "tables.json"),
        sample="spider_tables.jsonl",
        key="db_id",
        as_field="schema",
        published_sha256=frozenset({"61bb20aa401f03164e2d7f3b16509b7b5f79cc9c943ca7bd159046df1159e2ed"}),
        obtain="take evaluation_examples/examples/tables.json from the project taoyds/spider",
    ),
)
