"""Exact-set match of two SQL queries without their values, for databases that are not there to execute them.

In the spirit of "exact matching" in Spider's evaluation (Yu et al. 2018, arXiv:1809.08887, `evaluation.py`): clauses are
compared as sets, literals and DISTINCT count for nothing, and columns that foreign keys join are the same column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from talon_bench.scoring.sql import parse_query

VALUE = "?"
"""Stands for every literal."""


@dataclass(frozen=True)
class Schema:
    """A database's tables: `columns` by table, and `keys`, the common name of "table.column"s that foreign keys join."""

    columns: Mapping[str, frozenset[str]]
    keys: Mapping[str, str]

    @classmethod
    def read(cls, text: str) -> Schema:
        """From JSON with `table_names_original`, `column_names_original` and `foreign_keys` as in Spider's tables.json."""
        entry = json.loads(text)
        tables = [name.lower() for name in entry["table_names_original"]]
        places = [(table, name.lower()) for table, name in entry["column_names_original"]]
        names = [f"{tables[table]}.{name}" for table, name in places]
        columns = {
            table: frozenset(name for place, name in places if place == number) for number, table in enumerate(tables)
        }
        return cls(columns, {names[column]: names[first] for column, first in _joined(entry["foreign_keys"]).items()})


def exact_set_match(gold: str, query: str, schema: Schema) -> bool:
    """Whether the two have the same clauses; False for a `query` that is no single query."""
    wanted = clause_sets(gold, schema)
    return wanted is not None and wanted == clause_sets(query, schema)


def clause_sets(query: str, schema: Schema) -> Hashable | None:
    """The clauses of a query, equal for two queries that match; None for what is no single query, or too deep to read.

    Compared are, each as a multiset: select items with their aggregates, tables, conditions of WHERE and HAVING, GROUP BY;
    in order: ORDER BY with directions; and the connectives, whether there is a LIMIT, and the parts of UNION, INTERSECT and
    EXCEPT; all of it again inside nested queries. Not compared: literals, DISTINCT, aliases, capitals, ON conditions.
    """
    parsed = parse_query(query)
    try:
        return None if parsed is None else _query(parsed, _Scope(schema))
    except RecursionError:
        return None


def _joined(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """For each column of a foreign key, the first of all columns that it is joined with, directly or through others."""
    groups: list[set[int]] = []
    for pair in pairs:
        touched = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in touched] + [set(pair).union(*touched)]
    return {column: min(group) for group in groups for column in group}


@dataclass
class _Scope:
    """The names that are known inside one SELECT: sources by alias, output columns by alias, common table expressions."""

    schema: Schema
    outer: _Scope | None = None
    sources: dict[str, Hashable] = field(default_factory=dict)
    tables: dict[str, Hashable] = field(default_factory=dict)
    outputs: dict[str, Hashable] = field(default_factory=dict)

    def chain(self) -> Iterator[_Scope]:
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def table(self, name: str) -> Hashable:
        """A common table expression's clauses, or the name of a real table."""
        return next((scope.tables[name] for scope in self.chain() if name in scope.tables), name)

    def column(self, node: exp.Column) -> Hashable:
        name, qualifier = node.name.lower() or "*", node.table.lower()
        if qualifier:
            source = next((scope.sources[qualifier] for scope in self.chain() if qualifier in scope.sources), qualifier)
            return self._name(source, name)
        for scope in self.chain():
            for source in scope.sources.values():
                if isinstance(source, str) and name in self.schema.columns.get(source, ()):
                    return self._name(source, name)
            if name in scope.outputs:
                return scope.outputs[name]
        # As SQLite reads it: double quotes around what is no column make a text.
        return VALUE if node.this.args.get("quoted") else name

    def _name(self, source: Hashable, name: str) -> Hashable:
        full = f"{source}.{name}"
        return self.schema.keys.get(full, full) if isinstance(source, str) else (source, name)


def _query(node: exp.Expression, outer: _Scope) -> Hashable:
    """The clauses of a query, comparable."""
    node = node.unnest()
    scope = _Scope(outer.schema, outer)
    for cte in node.ctes:
        scope.tables[cte.alias.lower()] = _query(cte.this, scope)
    if isinstance(node, exp.SetOperation):
        operation = (type(node).__name__, bool(node.args.get("distinct")))
        parts = (_query(node.this, scope), _query(node.expression, scope))
        return operation, parts, _order(node, scope), "limit" in _clauses(node)
    sources = _bag(_sources(node, scope))
    items = [_expression(item, scope) for item in node.expressions]
    scope.outputs = {
        item.alias.lower(): value for item, value in zip(node.expressions, items, strict=True) if item.alias
    }
    clauses = _clauses(node)
    return (
        _bag(items),
        sources,
        _conditions(clauses.get("where"), scope),
        _bag(_expression(item, scope) for item in clauses["group"].expressions) if "group" in clauses else None,
        _conditions(clauses.get("having"), scope),
        _order(node, scope),
        "limit" in clauses,
    )


def _clauses(node: exp.Expression) -> dict[str, exp.Expression]:
    return {name: clause for name, clause in node.args.items() if clause}


def _bag(items: Iterable[Hashable]) -> Hashable:
    return frozenset(Counter(items).items())


def _sources(node: exp.Expression, scope: _Scope) -> Iterator[Hashable]:
    """What a SELECT reads, noted in `scope` by alias; an outer join says its side."""
    start = node.args.get("from_")
    places = [("", start.this)] if start else []
    places += [(join.side.upper(), join.this) for join in node.args.get("joins") or ()]
    for side, source in places:
        inner = source.unnest() if isinstance(source, exp.Subquery) else source
        if isinstance(inner, exp.Table):
            # In parentheses a table may bring joins of its own.
            places += [(join.side.upper(), join.this) for join in inner.args.get("joins") or ()]
            found = scope.table(inner.name.lower())
        else:
            found = _expression(source, scope)
        alias = source.alias_or_name or inner.alias_or_name or f"#{len(scope.sources)}"
        scope.sources[alias.lower()] = found
        yield (side, found)


def _conditions(clause: exp.Expression | None, scope: _Scope) -> Hashable:
    """The conditions that AND and OR join, whatever the parentheses, and which of the two are there."""
    if clause is None:
        return None
    units, connectives = [], set()
    waiting = [clause.this if isinstance(clause, (exp.Where, exp.Having)) else clause]
    while waiting:
        node = waiting.pop()
        inner = node.unnest()
        if isinstance(inner, exp.Connector):
            connectives.add(type(inner).__name__)
            waiting += [inner.this, inner.expression]
        else:
            units.append(_expression(inner, scope))
    return _bag(units), frozenset(connectives)


def _order(node: exp.Expression, scope: _Scope) -> Hashable:
    order = node.args.get("order")
    items = order.expressions if order else ()
    return tuple((_expression(item.this, scope), bool(item.args.get("desc"))) for item in items)


def _expression(node: exp.Expression, scope: _Scope) -> Hashable:
    """An expression without names of its own choice: columns resolved, literals and DISTINCT gone."""
    if isinstance(node, (exp.Paren, exp.Alias)):
        return _expression(node.this, scope)
    if isinstance(node.unnest(), (exp.Select, exp.SetOperation)):
        return _query(node, scope)
    if isinstance(node, exp.Column):
        return scope.column(node)
    if isinstance(node, exp.Literal) or (isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal)):
        return VALUE
    if isinstance(node, exp.Connector):
        return _conditions(node, scope)
    if isinstance(node, exp.Distinct) and len(node.expressions) == 1:
        return _expression(node.expressions[0], scope)
    parts = [(name, _parts(value, scope)) for name, value in sorted(node.args.items()) if name != "negate"]
    if isinstance(node, exp.In):
        # A list of literals counts as one.
        parts = [(name, frozenset(values)) for name, values in parts]
    whole = (type(node).__name__, tuple(part for part in parts if part[1]))
    return ("Not", (("this", (whole,)),)) if node.args.get("negate") else whole


def _parts(value: object, scope: _Scope) -> tuple[Hashable, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(
        _expression(item, scope) if isinstance(item, exp.Expression) else str(item).lower()
        for item in values
        if item not in (None, False)
    )
