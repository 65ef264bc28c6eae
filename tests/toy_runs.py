"""Small runs of the whole harness on toy checkpoints: prompt files, overrides, and the command line in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from conftest import ToyFolders

QUESTIONS = ("Add 2 and 3.", "Half of 9?", "7 x 6 =", "Why?")
CONVERSATIONS = (("Hi there.", "And then?"), ("Name a tree.", "Another."), ("Sing.", "Louder!"))
UNTIMED = ("load", "prefill_ms", "decode_ms", "draft_ms", "verify_ms", "other_ms")
"""Columns that differ between two runs of one configuration."""


def write_prompts(
    folder: Path, questions: Sequence[str] = QUESTIONS, conversations: Sequence[Sequence[str]] = CONVERSATIONS
) -> Path:
    """A folder for `data.root` with short prompts in the published form of GSM8K and MT-Bench."""
    rows = {
        "gsm8k/test.jsonl": [{"question": text, "answer": "#### 1"} for text in questions],
        "mt_bench/question.jsonl": [
            {"question_id": number, "category": "writing", "turns": list(turns)}
            for number, turns in enumerate(conversations, start=1)
        ],
    }
    for name, entries in rows.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in entries), encoding="utf-8")
    return folder


def toy_overrides(folders: ToyFolders, root: Path, target: Path | None = None) -> list[str]:
    """Overrides under which the command line runs the toys in float32: AR, EAGLE-3 and TALON with small trees."""
    return [
        "target=local",
        f"target.path='{target or folders.target('llama')}'",
        "target.name=toy",
        "target.dtype=float32",
        f"head.eagle3.path='{folders.head('llama', 'eagle3')}'",
        f"head.eagle2.path='{folders.head('llama', 'eagle')}'",
        "lineup=smoke",
        "method=talon_small",
        f"data.root='{write_prompts(root / 'data')}'",
        f"run.root='{root / 'runs'}'",
        "run.warmup_tokens=2",
        "decode.max_new_tokens=12",
        "launch.threads=1",
    ]


def rows(folder: Path, kind: str) -> list[dict]:
    """Rows of `turns` or `rounds` of a run folder, without what is timing."""
    table = pq.read_table(folder / f"{kind}.parquet")
    return table.drop_columns([name for name in UNTIMED if name in table.column_names]).to_pylist()


@dataclass(frozen=True)
class Result:
    """What a command line left behind."""

    status: int
    out: str
    err: str

    @property
    def last(self) -> dict:
        """The last line of stdout, which is one JSON object."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def folder(self) -> Path:
        return Path(self.last["run_dir"])

    @property
    def notes(self) -> list[str]:
        """Lines of stderr that report an end other than success."""
        return [line for line in self.err.splitlines() if line.startswith(("error:", "fault:", "interrupted"))]


def assert_refused(result: Result, message: str) -> None:
    """The command ended with status 2 and one line on stderr, which holds `message`."""
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert result.err.startswith("error: ")
    assert message in result.err


@dataclass
class CommandLine:
    """`python -m talon_bench` in this process; `cli("dataset.limit=1", ...)` appends to the toy's overrides."""

    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    base: list[str] = field(default_factory=list)

    def __call__(self, *arguments: str) -> Result:
        from hydra.core.global_hydra import GlobalHydra

        import talon_bench.__main__ as program

        GlobalHydra.instance().clear()
        self.monkeypatch.setenv("HYDRA_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", "0"))
        self.monkeypatch.setattr(program, "_statuses", [0])
        # Listening for other work takes half a second a run.
        self.monkeypatch.setattr("psutil.cpu_percent", lambda interval: 1.0)
        flags = [argument for argument in arguments if argument == "-m"]
        overrides = [argument for argument in arguments if argument != "-m"]
        self.monkeypatch.setattr("sys.argv", ["talon-bench", *flags, *self.base, *overrides])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            program.main()
        captured = self.capture.readouterr()
        return Result(ended.value.code, captured.out, captured.err)
