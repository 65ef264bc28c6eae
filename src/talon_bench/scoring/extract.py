"""From a chat answer to the Python that it proposes."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Collection

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+-]*)[^\n]*\n", re.MULTILINE)
_PYTHON = frozenset(("", "python", "python3", "py"))
_CODE_LINE = re.compile(r"^(?:import\s|from\s+\S+\s+import\b|(?:async\s+)?def\s|class\s|@)", re.MULTILINE)


def python_of(text: str, names: Collection[str]) -> str:
    """The code of an answer that is to define one of `names`; "" where it has none.

    Of several fenced blocks that may be Python, the first that defines a name, else the first; a fence that the token cap
    cut open ends with the text. Without a fence, the text itself, without the remarks before its code where it defines a name.
    What a cut or a remark left behind the last line that parses is dropped, but nothing inside a closed fence.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = _blocks(text)
    if blocks:
        return next((block for block in blocks if defines(block, names)), blocks[0])
    if defines(text, names):
        text = _from_first_statement(text)
        return parsing_start(text) or text
    return text


def defines(code: str, names: Collection[str]) -> bool:
    """Whether a function or class of one of these names begins at the left margin."""
    return any(re.search(rf"^(?:(?:async\s+)?def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) for name in names)


def parsing_start(code: str, before: str = "") -> str:
    """The longest run of whole lines from the start of `code` that compiles behind `before`, cut where each error lies."""
    lines = _lines(code)
    offset = before.count("\n")
    while lines:
        line = error_line(before + "".join(lines))
        if line is None:
            return "".join(lines)
        del lines[max(0, min(line - offset, len(lines)) - 1) :]
    return ""


def error_line(code: str) -> int | None:
    """The 1-based line of the first syntax error; None where the code compiles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            compile(code, "<answer>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, OverflowError, MemoryError, RecursionError):
        return 1
    return None


def _from_first_statement(text: str) -> str:
    """Drop remarks before the code, but no assignment, import or the like that stands before its first definition."""
    first = _CODE_LINE.search(text).start()
    lines = _lines(text[:first])
    for skipped in range(len(lines)):
        ahead = "".join(lines[skipped:])
        if (
            ahead.strip()
            and error_line(ahead) is None
            and not any(isinstance(node, ast.Expr) for node in ast.parse(ahead).body)
        ):
            return ahead + text[first:]
    return text[first:]


def _lines(text: str) -> list[str]:
    """Lines as the compiler counts them, with their ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _blocks(text: str) -> list[str]:
    """Contents of the fenced blocks that may be Python, an open one at the end included."""
    blocks, place = [], 0
    while opening := _FENCE.search(text, place):
        closing = re.compile(rf"^[ \t]*{opening['mark']}[ \t]*$", re.MULTILINE).search(text, opening.end())
        block = text[opening.end() : closing.start() if closing else len(text)]
        place = closing.end() if closing else len(text)
        if opening["language"].lower() in _PYTHON:
            block = textwrap.dedent(block) if opening["indent"] else block
            blocks.append(block if closing else parsing_start(block) or block)
    return blocks
