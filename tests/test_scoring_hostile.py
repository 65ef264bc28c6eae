"""Hostile answers through the scorers of code: all fail, in time, and nothing outside them changes.

Every attempt is followed by an honest answer, which passes: the process that runs both is unharmed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hostile_answers import BODIES, source
from talon_bench.scoring import humaneval, mbpp
from talon_bench.scoring.base import Answer, Score
from talon_bench.scoring.code import CodeScorer
from talon_bench.scoring.sandbox import Child, Limits, Sandbox

TIMEOUT_S = 1.0
MEMORY_MB = 517
"""Also known by this number: the processes of these tests."""
SLACK_S = 4.0
WORKERS = 2
VARIABLE = "TALON_BENCH_TEST_SECRET"
HONEST = "```python\ndef answer():\n    return 42\n```"

PROBLEMS = {
    humaneval: {
        "task_id": "T/0",
        "prompt": 'def answer():\n    """The answer to everything."""\n',
        "entry_point": "answer",
        "canonical_solution": "    return 42\n",
        "test": "def check(candidate):\n    assert isinstance(candidate(), int)\n    assert abs(candidate() - 42) == 0\n",
    },
    mbpp: {
        "task_id": "1",
        "code": "def answer():\n    return 42\n",
        "setup": "",
        "tests": "assert isinstance(answer(), int)\nassert abs(answer() - 42) == 0",
        "challenge_tests": "",
    },
}
WORLDS = {
    "humaneval, namespaces": (humaneval, True),
    "mbpp, without namespaces": (mbpp, False),
}


@dataclass(frozen=True)
class Result:
    """What came of all hostile answers, and of the honest ones among them."""

    scores: dict[str, Score]
    honest: list[Score]
    seconds: list[float]
    target: Path
    connections: int


@pytest.fixture(scope="module", params=WORLDS)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    module, namespaces = WORLDS[request.param]
    if namespaces and not Sandbox(Limits(TIMEOUT_S, MEMORY_MB), 1).guards()["process namespace"]:
        pytest.skip("this system refuses namespaces")
    folder = tmp_path_factory.mktemp("target")
    for place in (folder, folder.parent):
        place.chmod(0o755)
    target = folder / "target"
    target.write_text("untouched", encoding="utf-8")
    seconds: list[float] = []
    run = Child.run

    def timed(self: Child, program: object, *arguments: object) -> str:
        start = time.monotonic()
        outcome = run(self, program, *arguments)
        seconds.append(time.monotonic() - start)
        return outcome

    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        patch.setenv(VARIABLE, "secret")
        patch.setattr(Child, "run", timed)
        values = {
            "TARGET": str(target),
            "FOLDER": str(folder),
            "HOME": str(Path.home()),
            "ADDRESS": server.getsockname(),
            "VARIABLE": VARIABLE,
        }
        answers = [
            Answer(text, PROBLEMS[module])
            for name in BODIES
            for text in (f"```python\n{source(name, 'answer', values)}```", HONEST)
        ]
        scorer = CodeScorer(module.program_of, Sandbox(Limits(TIMEOUT_S, MEMORY_MB, namespaces), WORKERS))
        scores = scorer.score(answers)
        yield Result(dict(zip(BODIES, scores[::2], strict=True)), scores[1::2], seconds, target, _waiting(server))


@pytest.mark.parametrize("name", BODIES)
def test_hostile_answer_fails(result: Result, name: str) -> None:
    assert not result.scores[name].correct, result.scores[name]


def test_every_honest_answer_among_them_passes(result: Result) -> None:
    assert [score.outcome for score in result.honest] == ["passed"] * len(BODIES)


def test_each_ends_within_its_time_limit(result: Result) -> None:
    assert len(result.seconds) == 2 * len(BODIES)
    assert max(result.seconds) < TIMEOUT_S + SLACK_S


def test_nothing_outside_changes(result: Result) -> None:
    assert result.target.read_text(encoding="utf-8") == "untouched"
    assert os.listdir(result.target.parent) == ["target"]
    assert result.target.stat().st_mode & 0o777 == 0o644
    assert result.connections == 0


def test_no_process_survives(result: Result) -> None:
    assert [process for process in psutil.process_iter(["cmdline"]) if _ours(process)] == []


def test_outcomes_name_what_happened(result: Result) -> None:
    expected = {
        "endless loop": "timed out",
        "deaf to signals": "timed out",
        "memory bomb": "out of memory",
        "sys.exit": "error: SystemExit",
        "exit": "ended early",
        "exception named passed": "error: passed",
        "exception without a name": "error: Exception",
        "other exits": "wrong answer",
        "other builtins": "wrong answer",
    }
    assert {name: result.scores[name].outcome for name in expected} == expected


def _ours(process: psutil.Process) -> bool:
    return f'"memory_mb": {MEMORY_MB}' in " ".join(process.info["cmdline"] or ())


def _waiting(server: socket.socket) -> int:
    """Connections that somebody made."""
    server.setblocking(False)
    count = 0
    try:
        while True:
            server.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count
