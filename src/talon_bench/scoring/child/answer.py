"""Running one answer, and knowing that it really ran to its end."""

from __future__ import annotations

import builtins
import os
import select
import signal
import sys
import time
import types
from collections.abc import Sequence

POLL_S = 0.05
HARNESS = ("audit", "limits", "namespaces")
"""Modules of the harness, whose names an answer may have for its own."""
LONGEST = 80
"""Bytes of an outcome."""
READ_BYTES = 4096


def execute(parts: Sequence[str], verdict: int, secret: bytes) -> None:
    """Run the parts, the answer first and its tests after it, in one module; then write what came of it and end.

    The tests see the builtins as they were before the answer. A process that the answer forked has no say. All that is
    needed afterwards is held here, where an answer that replaces functions of `os` or `builtins` does not reach it.
    """
    run, write, leave, getpid, own = exec, os.write, os._exit, os.getpid, os.getpid()
    untouched = dict(vars(builtins))
    module = types.ModuleType("answer")
    for name in HARNESS:
        sys.modules.pop(name, None)
    sys.modules["answer"] = module
    try:
        codes = [compile(part, "<answer>", "exec", dont_inherit=True) for part in parts]
        for code in codes:
            run(code, module.__dict__)
            module.__dict__["__builtins__"] = untouched
        outcome = "passed"
    except BaseException as error:
        name = type.__dict__["__name__"].__get__(type(error))
        outcome = "error " + (name if name.isidentifier() else "Exception")
    if getpid() == own:
        write(verdict, secret + b" " + outcome.encode()[:LONGEST] + b"\n")
    leave(0)


def await_verdict(child: int, pipe: int, secret: bytes, seconds: float) -> str:
    """The outcome of the answer that `child` runs: "passed", or why not. The child may still run afterwards.

    Nothing counts but a line that begins with the secret; what else comes over the pipe is read and forgotten.
    """
    end = time.monotonic() + seconds
    line, status, pipes = b"", None, [pipe]
    while (left := end - time.monotonic()) > 0:
        if status is None:
            found, code = os.waitpid(child, os.WNOHANG)
            status = code if found else None
        if select.select(pipes, [], [], 0 if status is not None else min(left, POLL_S))[0]:
            data = os.read(pipe, READ_BYTES)
            *lines, line = (line + data).split(b"\n")
            line = line[-READ_BYTES:]
            for complete in lines:
                if complete.startswith(secret + b" "):
                    return _outcome(complete[len(secret) + 1 :].decode(errors="replace"))
            if not data:
                pipes = []
        elif status is not None:
            return _ending(status)
    return "timed out"


def _outcome(verdict: str) -> str:
    named = {"passed": "passed", "error AssertionError": "wrong answer", "error MemoryError": "out of memory"}
    return named.get(verdict, verdict.replace("error ", "error: ", 1))


def _ending(status: int) -> str:
    """The outcome of a process that ended without a verdict, whatever its exit status says."""
    if not os.WIFSIGNALED(status):
        return "ended early"
    number = os.WTERMSIG(status)
    names = {known.value: known.name for known in signal.Signals}
    return "timed out" if number == signal.SIGXCPU else f"killed: {names.get(number, number)}"
