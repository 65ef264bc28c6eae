"""The SQL in a model's answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# It warns on stderr, in the model's words, of statements that it does not know.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

LONGEST = 10_000
"""Characters of SQL that are looked at; the longest gold query of the dev set has 422."""

_FENCE = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_INLINE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_CTE = (
    r"WITH\s+(?:RECURSIVE\s+)?[\w\"`\[\]]+\s*(?:\([^()]*\)\s*)?AS\s*(?:(?:NOT\s+)?MATERIALIZED\s*)?"
    r"\(\s*(?:SELECT|VALUES|WITH)\b"
)
_LINE = re.compile(rf"^[ \t]*(?=SELECT\b|{_CTE})", re.IGNORECASE | re.MULTILINE)
_ELSEWHERE = (re.compile(rf"\b(?=SELECT\b|{_CTE})"), re.compile(rf"\b(?=SELECT\b|{_CTE})", re.IGNORECASE))
"""Where in a line a query may begin: in capitals, anyhow."""
_QUERY = re.compile(rf"[\s(]*(?:SELECT\b|{_CTE})", re.IGNORECASE)
_CHANGE = re.compile(
    r"\s*(?:(?:ALTER|CREATE|DROP)\s+(?:TEMP|TEMPORARY|UNIQUE|VIRTUAL|TABLE|VIEW|INDEX|TRIGGER)\b|(?:INSERT|REPLACE)\s+(?:INTO|OR)\b"
    r"|DELETE\s+FROM\b|UPDATE\s+\S+\s+SET\b|(?:ATTACH|DETACH|PRAGMA|REINDEX|VACUUM)\b)",
    re.IGNORECASE,
)
"""A statement that is no query and would leave a trace."""
_COMMENT = r"--[^\n]*|/\*.*?\*/"
_LEADING = re.compile(rf"(?:\s|{_COMMENT})*", re.DOTALL)
_TOKEN = re.compile(
    rf"""'(?:[^']|'')*'|"(?:[^"]|"")*"|{_COMMENT}|(?P<fence>```)|(?P<blank>\n[ \t]*\n)|(?P<end>;)|.""", re.DOTALL
)


def extract_sql(text: str) -> str | None:
    """The query that an answer gives, None where it gives none.

    An answer that starts with a query gives it; one that continues a prompt ending in "SELECT " (DAIL-SQL, Gao et al. 2024,
    arXiv:2308.15363) is completed. Else it is in the first fenced block marked as SQL, or in the first fenced block, or
    begins at the start of a line, or is inline code, or begins at the first SELECT or WITH: the first of these that selects
    from a table, else the first. A query ends at its semicolon, outside a block also at a blank line. An answer that goes on
    with a statement that changes something is kept whole, to be refused.
    """
    text = _bare(text[:LONGEST])
    if _QUERY.match(text):
        return _first_statement(text)
    continued = f"SELECT {_first_statement(text)}"
    if _selects_from_a_table(continued):
        return continued
    if blocks := _FENCE.findall(text):
        marked = [block for language, block in blocks if language.lower() in ("sql", "sqlite")]
        query = _first_statement(_bare((marked or [block for _, block in blocks])[0]), blank_ends=False)
        return (query if _QUERY.match(query) or _CHANGE.match(query) else f"SELECT {query}") if query else None
    found = list(dict.fromkeys(_candidates(text)))
    return next((query for query in found if _selects_from_a_table(query)), found[0] if found else None)


def _candidates(text: str) -> Iterator[str]:
    """What may be the query of an answer without a block, the surest first: at a line's start, inline code, elsewhere."""
    if line := _LINE.search(text):
        yield _first_statement(text[line.end() :])
    codes = (_first_statement(_bare(code)) for _, code in _INLINE.findall(text))
    yield from (code for code in codes if _QUERY.match(code))
    for place in filter(None, (sign.search(text) for sign in _ELSEWHERE)):
        start = place.end()
        # Inline code that a cap left open.
        yield _first_statement(text[start:].partition("`")[0] if text[:start].endswith("`") else text[start:])


def parse_query(query: str) -> exp.Expression | None:
    """The query as sqlglot reads it in SQLite's dialect; None where it is no single query, or too long or deep to read."""
    try:
        statements = sqlglot.parse(query, dialect="sqlite") if len(query) <= LONGEST else []
    except (SqlglotError, RecursionError):
        return None
    return statements[0] if len(statements) == 1 and isinstance(statements[0], exp.Query) else None


def _bare(text: str) -> str:
    """Without the white space and comments before it."""
    return text[_LEADING.match(text).end() :]


def _first_statement(text: str, *, blank_ends: bool = True) -> str:
    """Up to the semicolon, the next fence, or (if `blank_ends`) a blank line, none of them inside quotes or comments."""
    for token in _TOKEN.finditer(text):
        if token["end"] and _CHANGE.match(text, token.end()):
            return text.strip()
        if token["end"] or token["fence"] or (token["blank"] and blank_ends):
            return text[: token.start()].strip()
    return text.strip()


def _selects_from_a_table(query: str) -> bool:
    parsed = parse_query(query)
    return parsed is not None and parsed.find(exp.From) is not None
