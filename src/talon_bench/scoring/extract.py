"""From a chat answer to the Python that it proposes."""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+-]*)[^\n]*\n", re.MULTILINE)
_PYTHON = frozenset(("", "python", "python3", "py"))
_CODE_LINE = re.compile(r"^(?:import\s|from\s+\S+\s+import\b|(?:async\s+)?def\s|class\s|@)", re.MULTILINE)
_INSIDE = "def answer():\n"
"""A function whose body is looked at."""


def python_of(text: str, names: Collection[str]) -> str:
    """The code of an answer that is to define one of `names`; "" where it has none.

    The first fenced block that defines a name; else the text outside of the blocks where it defines one, or begins with a
    function body; else the first block, else the text. A block is fenced by no language or Python; one that the token cap cut
    open ends with the text. Remarks before the definition in a text are dropped, and so is, there and in an open block, what
    follows the last line that parses; nothing is dropped inside a closed fence.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks, outside = _split(text)
    for block in blocks:
        if defines(block, names):
            return block
    if defines(outside, names):
        code = _from_first_statement(outside)
        return parsing_start(code) or code
    return blocks[0] if blocks and not _is_body(outside) else outside


def defines(code: str, names: Collection[str]) -> bool:
    """Whether a function or class of one of these names begins at the left margin."""
    return any(re.search(rf"^(?:(?:async\s+)?def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) for name in names)


def body_start(code: str, before: str) -> str:
    """The longest start of `code` that compiles as a function body behind `before`.

    As it is, with its first line indented, or indented as a whole: a chat model may begin it at the left margin.
    """
    forms = (code, "    " + code, textwrap.indent(code, "    "))
    return max((parsing_start(form, before) for form in forms), key=lambda body: len(body.split()))


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
        with _quiet():
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
            and not any(isinstance(node, ast.Expr) for node in _parsed(ahead))
        ):
            return ahead + text[first:]
    return text[first:]


def _lines(text: str) -> list[str]:
    """Lines as the compiler counts them, with their ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _split(text: str) -> tuple[list[str], str]:
    """(contents of the fenced blocks that may be Python, an open one at the end included; the text outside of these)."""
    blocks, outside, start, place = [], [], 0, 0
    while opening := _FENCE.search(text, place):
        if (end := _behind_stray(text, opening)) is not None:
            outside.append(text[start : opening.start()])
            start = place = end
            continue
        closing = _closing(text, opening)
        block = text[opening.end() : closing.start() if closing else len(text)]
        place = closing.end() if closing else len(text)
        if opening["language"].lower() in _PYTHON:
            outside.append(text[start : opening.start()])
            start = place
            block = textwrap.dedent(block) if opening["indent"] else block
            blocks.append(block if closing else parsing_start(block) or block)
    return blocks, "".join([*outside, text[start:]])


def _closing(text: str, opening: re.Match[str]) -> re.Match[str] | None:
    return re.compile(rf"^[ \t]*{opening['mark']}[ \t]*$", re.MULTILINE).search(text, opening.end())


def _behind_stray(text: str, opening: re.Match[str]) -> int | None:
    """Where the remarks behind a closing mark end that no mark opened; None for a mark that opens a block.

    A mark closes what needed no opening where text stands before it, it names no language, and no code follows it up to the
    next mark, which is none or opens a block of its own.
    """
    following, closing = _FENCE.search(text, opening.end()), _closing(text, opening)
    if following is not None and following["language"] and (closing is None or following.start() < closing.start()):
        end = following.start()
    elif closing is None:
        end = len(text)
    else:
        return None
    alone = opening[0].strip() == opening["mark"] and text[: opening.start()].strip()
    return end if alone and not _statements(text[opening.end() : end]) else None


def _statements(text: str) -> list[ast.stmt]:
    """The statements that a text begins with, at the left margin or as a function body; lone words and values are none."""
    body = body_start(text, _INSIDE)
    found = _parsed(_INSIDE + body)[:1] if body.strip() else []
    return [
        node
        for function in found
        for node in function.body
        if not (isinstance(node, ast.Expr) or (isinstance(node, ast.AnnAssign) and node.value is None))
    ]


def _is_body(text: str) -> bool:
    """Whether the text begins with the body of a function: with statements of which one returns."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    own = [node for node in _statements(text) if not isinstance(node, scopes)]
    return any(isinstance(inner, ast.Return) for node in own for inner in ast.walk(node))


def _parsed(code: str) -> list[ast.stmt]:
    """The statements of code that compiles; none where they lie too deep."""
    with _quiet(), contextlib.suppress(RecursionError):
        return ast.parse(code).body
    return []


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the compiler's warnings of a model's code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
