"""Signatures with docstrings of installed libraries: texts like HumanEval's, which ask for a function's body.

Sources are parsed, never imported, so nothing of a library runs and the text is its author's own, line for line.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

from talon_bench.errors import UsageError
from talon_bench.prompts.prompt import Row

STDLIB = "stdlib"
LENGTHS = (60, 1000)
"""Characters of a docstring that tells enough to write the function and fits a prompt."""

_SKIPPED = frozenset({"tests", "test", "testing", "site-packages", "dist-packages", "idlelib", "lib2to3", "_vendor"})
_SECTION = re.compile(r"\n[ \t]*\n[ \t]*\w[\w ]*\n[ \t]*-{3,}[ \t]*\n")
"""A heading of numpydoc: a line underlined with dashes after a blank one."""


def functions(package: str) -> tuple[str, Iterator[tuple[str, Row]]]:
    """(version, rows) of an installed package, "stdlib" for Python's own library.

    A row is {"prompt": text}: the signature and docstring of one public function of module level. UsageError for a package
    that is not installed.
    """
    if package == STDLIB:
        return platform.python_version(), _rows(Path(sysconfig.get_path("stdlib")))
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UsageError(
            f"docstrings: found no installed package {package}; install it, or leave the source out (limit=0)"
        )
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return version, _rows(Path(next(iter(found.submodule_search_locations))))


def _rows(folder: Path) -> Iterator[tuple[str, Row]]:
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder)
        if _SKIPPED.isdisjoint(place.parts) and not file.name.startswith("test_"):
            for name, text in _module(file):
                yield f"{place.as_posix()} {name}", {"prompt": text}


def _module(file: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of the public functions of a module; a file that Python cannot read has none."""
    try:
        source = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    lines = source.splitlines()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and (text := _text(node, lines)):
            yield node.name, text


def _text(node: ast.FunctionDef, lines: list[str]) -> str | None:
    """Signature and docstring as they stand in the file, the docstring up to its first numpydoc section."""
    docstring = ast.get_docstring(node, clean=False)
    if docstring is None or len(node.body) < 2 or "\\" in docstring:
        return None
    first = node.body[0]
    signature = "\n".join(lines[node.lineno - 1 : first.lineno - 1])
    if not signature.rstrip().endswith(":"):
        return None
    told = _SECTION.split(docstring, maxsplit=1)[0].strip()
    if not LENGTHS[0] <= len(told) <= LENGTHS[1] or '"""' in told:
        return None
    indent = " " * first.col_offset
    body = textwrap.indent(textwrap.dedent(f"{indent}{told}"), indent).strip()
    return f'{textwrap.dedent(signature)}\n{indent}"""{body}\n{indent}"""\n'
