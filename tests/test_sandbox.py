"""The sandbox: outcomes, guards, the way down to fewer guards, and what is left when something is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hostile_answers import source
from talon_bench.errors import UsageError
from talon_bench.scoring import sandbox, workers
from talon_bench.scoring.sandbox import CHILD, Child, Limits, Sandbox

TIMEOUT_S = 10.0
SHORT_S = 0.5
WORLDS = pytest.mark.parametrize("namespaces", [True, False], ids=["namespaces", "without namespaces"])
HARNESS = """
from talon_bench.scoring.sandbox import Limits, Sandbox
Sandbox(Limits(2.0, {memory_mb}, {namespaces}), 1).run([["import time\\ntime.sleep(60)"]])
"""


def run(*program: str, namespaces: bool = True, memory_mb: int = 512, timeout_s: float = TIMEOUT_S) -> str:
    return Sandbox(Limits(timeout_s, memory_mb, namespaces), 1).run([program])[0]


@contextlib.contextmanager
def changed_child(tmp_path: Path, module: str, text: str) -> Iterator[None]:
    """A copy of the child's program in which `text` is added to a module."""
    copy = tmp_path / "child"
    shutil.copytree(CHILD, copy)
    with (copy / f"{module}.py").open("a", encoding="utf-8") as file:
        file.write(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "CHILD", copy)
        yield


def processes(memory_mb: int) -> list[psutil.Process]:
    """The sandbox's processes that have this limit."""
    mark = f'"memory_mb": {memory_mb}'
    return [found for found in psutil.process_iter(["cmdline"]) if mark in " ".join(found.info["cmdline"] or ())]


def wait_for(condition: object, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@WORLDS
@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        (["x = 1", "assert x == 1"], "passed"),
        ([""], "passed"),
        (["x = 1", "assert x == 2"], "wrong answer"),
        (["x = y"], "error: NameError"),
        (["def f(:"], "error: SyntaxError"),
        (["x = '\ud800'"], "error: UnicodeEncodeError"),
        (["raise KeyboardInterrupt"], "error: KeyboardInterrupt"),
        (["x = bytes(1 << 40)"], "out of memory"),
        (["import os", "os._exit(0)"], "ended early"),
        (["import os", "os.abort()"], "killed: SIGABRT"),
        (["import numpy", "assert numpy.arange(4).sum() == 6"], "passed"),
        (["import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int", "assert P(1) == P(1)"], "passed"),
        (["from __future__ import annotations\ndef f(x: Never): return x", "assert f(1) == 1"], "passed"),
        (["if __name__ == '__main__': raise ValueError"], "passed"),
        (["def abs(x): return 'mine'", "assert abs(-1) == 'mine'"], "passed"),
        (["import os", "open('file', 'w').write('x')", "assert os.listdir() == ['file']"], "passed"),
        (["import tempfile", "with tempfile.TemporaryFile() as file: file.write(b'x')"], "passed"),
    ],
)
def test_outcomes(program: list[str], outcome: str, namespaces: bool) -> None:
    assert run(*program, namespaces=namespaces) == outcome


@WORLDS
@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(60)", "9 ** 9 ** 9"])
def test_time_limit(program: str, namespaces: bool) -> None:
    start = time.monotonic()
    assert run(program, namespaces=namespaces, timeout_s=SHORT_S) == "timed out"
    assert SHORT_S < time.monotonic() - start < SHORT_S + 5


def test_all_guards_hold_where_the_system_has_namespaces() -> None:
    guards = Sandbox(Limits(TIMEOUT_S, 512), 1).guards()
    if not guards["process namespace"]:
        pytest.skip("this system refuses namespaces")
    assert [name for name, held in guards.items() if not held] == ["audit hook"]


def test_without_namespaces_the_other_guards_hold_with_an_audit_hook() -> None:
    guards = Sandbox(Limits(TIMEOUT_S, 512, namespaces=False), 1).guards()
    missing = {name for name, held in guards.items() if not held}
    assert missing <= {"process namespace", "mount namespace", "no new privileges", "own user"}
    assert {"process namespace", "mount namespace"} <= missing
    assert guards["audit hook"]


def test_a_probe_that_gets_through_is_reported(tmp_path: Path) -> None:
    with changed_child(tmp_path, "audit", "\ndef refuse_rest(*_): pass\n"):
        guards = Sandbox(Limits(TIMEOUT_S, 512, namespaces=False), 1).guards()
    expected = {"network": False, "home files": False, "audit hook": False, "memory": True, "time": True}
    assert {name: guards[name] for name in expected} == expected


@pytest.mark.parametrize("error", ["PermissionError('refused')", "OSError('no unshare on this system')"])
def test_refused_namespaces_are_done_without(tmp_path: Path, error: str) -> None:
    with changed_child(tmp_path, "namespaces", f"\ndef enter(*_): raise {error}\n"):
        assert run("import os", "assert os.getppid() != 1") == "passed"
        assert run("import os", "os.fork()") == "error: PermissionError"


def test_a_step_refused_half_way_is_done_without(tmp_path: Path) -> None:
    with changed_child(tmp_path, "namespaces", "\ndef _bind(*_): raise PermissionError\n"):
        assert run("import os", "os.fork()") == "error: PermissionError"


@pytest.mark.skipif(sys.platform != "linux", reason="adoption of orphans is Linux's")
@pytest.mark.parametrize("name", ["daemon", "fork bomb", "fork bomb that insists"])
def test_without_namespaces_and_hook_no_descendant_survives(tmp_path: Path, name: str) -> None:
    with changed_child(tmp_path, "audit", "\ndef refuse_rest(*_): pass\n"):
        outcome = run(source(name, "answer", {}), "answer()", namespaces=False, memory_mb=511, timeout_s=2.0)
    assert outcome in {"ended early", "error: BlockingIOError", "timed out"}
    assert processes(511) == []


def test_outcomes_come_in_the_order_of_the_programs() -> None:
    programs = [[f"assert {number} % 3"] for number in range(20)]
    outcomes = Sandbox(Limits(10.0, 512), 3).run(programs)
    assert outcomes == ["passed" if number % 3 else "wrong answer" for number in range(20)]
    assert Sandbox(Limits(10.0, 512), 3).run([]) == []


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that children took, in place of running them: "error" raises, the others take a while."""
    programs: list[str] = []

    def run(self: Child, program: list[str]) -> str:
        programs.append(program[0])
        if program[0] == "error":
            raise UsageError("no child")
        time.sleep(0.2)
        return "passed"

    monkeypatch.setattr(Child, "run", run)
    return programs


def test_the_first_error_stops_the_other_workers(taken: list[str]) -> None:
    with pytest.raises(UsageError, match="no child"):
        Sandbox(Limits(10.0, 512), 2).run([["slow"], ["error"], *[["slow"]] * 20])
    assert taken.count("slow") <= 2


def test_an_interruption_stops_all_workers(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Sandbox(Limits(10.0, 512), 2).run([["slow"]] * 20)
    assert len(taken) <= 2


@WORLDS
def test_packages_below_the_system_s_temporary_folder_are_there(
    monkeypatch: pytest.MonkeyPatch, namespaces: bool
) -> None:
    """As in an environment that was made there; with namespaces, nothing else of that folder is."""
    separate = namespaces and run("import os", "assert os.getppid() == 1") == "passed"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, tempfile.TemporaryDirectory(dir="/tmp") as other:
        os.chmod(folder, 0o755)
        (Path(folder) / "leaf.py").write_text("GREEN = True\n")
        monkeypatch.setattr(sandbox, "_packages", lambda: folder)
        assert run("import leaf", "assert leaf.GREEN", namespaces=namespaces) == "passed"
        assert run("import os", f"os.remove({folder!r} + '/leaf.py')", namespaces=namespaces).startswith("error: ")
        if separate:
            assert run("import os", f"assert not os.path.exists({other!r})") == "passed"
            assert run("import os", "assert os.path.expanduser('~') == os.getcwd()") == "passed"


@WORLDS
def test_a_program_finds_nothing_of_the_last(namespaces: bool) -> None:
    first = "import builtins, math, os\nopen('file', 'w').close()\nos.mkdir('folder', 0)\nmath.pi = builtins.mark = 3"
    second = "import builtins, math, os\nassert not os.listdir() and math.pi > 3 and not hasattr(builtins, 'mark')"
    assert Sandbox(Limits(5.0, 512, namespaces), 1).run([[first], [second]]) == ["passed", "passed"]


def test_hashes_are_the_same_in_every_process() -> None:
    text = "raise type('h' + str(abs(hash('talon'))), (Exception,), {})"
    assert run(text) == run(text)


def test_a_null_byte_is_an_error() -> None:
    assert run("x = '\0'").startswith("error: ")


def test_a_forked_copy_has_no_verdict() -> None:
    if run("import os", "assert os.getppid() == 1") != "passed":
        pytest.skip("this system refuses namespaces")
    assert run("import os, time\nif os.fork(): time.sleep(60)", "assert True", timeout_s=1.0) == "timed out"


@WORLDS
def test_a_lost_child_costs_one_answer(namespaces: bool) -> None:
    with Child(Limits(TIMEOUT_S, 512, namespaces)) as child:
        assert child.run(["x = 1"]) == "passed"
        child._process.kill()
        child._process.wait()
        assert child.run(["x = 1"]) == "killed"
        assert child.run(["x = 1"]) == "passed"


@WORLDS
def test_nothing_outlives_a_killed_harness(namespaces: bool) -> None:
    memory_mb = 509 + namespaces
    text = HARNESS.format(memory_mb=memory_mb, namespaces=namespaces)
    before = set(Path(tempfile.gettempdir()).glob("talon_bench_*"))
    harness = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: len(processes(memory_mb)) >= 3, 20)
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait()
    assert wait_for(lambda: not processes(memory_mb), 10)
    left = set(Path(tempfile.gettempdir()).glob("talon_bench_*")) - before
    assert [path for path in left if os.listdir(path)] == []
