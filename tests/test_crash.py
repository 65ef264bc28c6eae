"""A run killed with SIGKILL at many moments and resumed each time ends with the rows of an uninterrupted run.

Run as a program, this file is the process that kills: it imports everything once and forks a process per attempt.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

KILLS = int(os.environ.get("TALON_BENCH_KILLS", "20"))
STAGES = ("before", "half", "unrenamed", "after")
"""Where in the write of a file: before it, with half of its bytes on disk, before its renaming, and after that."""


@pytest.fixture(scope="module")
def killed(toy_folders, tmp_path_factory: pytest.TempPathFactory) -> dict:
    from toy_runs import toy_overrides

    root = tmp_path_factory.mktemp("crash")
    overrides = [*toy_overrides(toy_folders, root), "dataset=mt_bench", "lineup=noise", "decode.max_new_tokens=16"]
    request = json.dumps({"overrides": overrides, "root": str(root), "kills": KILLS, "seed": 0})
    done = subprocess.run(
        [sys.executable, __file__, request],
        capture_output=True,
        text=True,
        timeout=60 + 20 * KILLS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_resumed_runs_have_the_rows_of_an_uninterrupted_one(killed: dict) -> None:
    from talon_bench.report.load import load_run
    from toy_runs import rows

    reference = Path(killed["reference"])
    expected = {kind: rows(reference, kind) for kind in ("turns", "rounds", "trees")}
    assert len(expected["turns"]) == 3 * 2 * 3
    assert killed["finished"]
    for folder in map(Path, killed["finished"]):
        for kind in ("turns", "rounds", "trees"):
            assert rows(folder, kind) == expected[kind], folder
        load_run(folder)
        left = {file.name for file in folder.iterdir()} - {".lock", "parts"}
        assert left == {"run.json", "turns.parquet", "rounds.parquet", "trees.parquet"}


def test_the_kills_were_spread_over_the_run(killed: dict) -> None:
    kills = killed["kills"]
    assert len(kills) == KILLS
    if KILLS < 20:
        pytest.skip("too few kills to say how they were spread")
    assert len({kill["done"] for kill in kills}) >= 3, "kills after different numbers of prompts"
    assert {kill["stage"] for kill in kills} == {"clock", *STAGES}
    assert any(kill["unfinished"] for kill in kills), "some left a half-written file"


def drive(overrides: list[str], root: str, kills: int, seed: int) -> dict:
    """Measure once undisturbed, then kill `kills` times, resuming each time; whole runs are set aside and started anew."""
    import psutil
    import torch

    from talon_bench import job
    from talon_bench.compose import compose_config

    torch.set_num_threads(1)
    psutil.cpu_percent = lambda interval: 1.0
    draw = random.Random(seed)
    reference = Path(root) / "reference"
    job.run(compose_config([*overrides, f"run.dir='{reference}'"]))
    configs = [compose_config([*overrides, f"run.dir='{Path(root) / str(number)}'"]) for number in range(kills + 1)]
    start = time.perf_counter()
    finished, struck = [], []
    attempt(configs[0], "clock", 60.0)
    finished.append(configs[0].run.dir)
    seconds = time.perf_counter() - start
    while len(struck) < kills:
        config = configs[len(finished)]
        stage = "clock" if len(struck) % 2 else STAGES[len(struck) // 2 % len(STAGES)]
        moment = draw.uniform(0, seconds) if stage == "clock" else draw.randint(1, 12)
        if attempt(config, stage, moment):
            struck.append({"stage": stage, "moment": moment, **inspect(Path(config.run.dir))})
        else:
            finished.append(config.run.dir)
    if attempt(configs[len(finished)], "clock", 60.0):
        raise RuntimeError("the last resumption did not end")
    finished.append(configs[len(finished)].run.dir)
    return {"reference": str(reference), "finished": finished, "kills": struck}


def attempt(config: object, stage: str, moment: float) -> bool:
    """Run in a process of its own; whether it was killed: after `moment` seconds, or in its `moment`-th write of a file."""
    from talon_bench import job

    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            if stage != "clock":
                die_in_a_write(stage, int(moment))
            fault = job.run(config).fault
            os._exit(3 if fault else 0)
        except BaseException:
            traceback.print_exc()
            os._exit(4)
    deadline = time.monotonic() + (moment if stage == "clock" else 60.0)
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.001)
    code = os.waitstatus_to_exitcode(ended[1])
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"an attempt ended with status {code}")
    return code != 0


def die_in_a_write(stage: str, number: int) -> None:
    from talon_bench import atomic

    real, count = atomic.replace, 0

    def replace(file: Path, write: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            part = file.with_name(f".{file.name}.part")
            if stage in ("half", "unrenamed"):
                write(part)
            if stage == "half":
                os.truncate(part, part.stat().st_size // 2)
            if stage == "after":
                real(file, write)
            os.kill(os.getpid(), signal.SIGKILL)
        real(file, write)

    atomic.replace = replace


def inspect(folder: Path) -> dict:
    """What a kill left: prompts done, half-written files; whatever has its final name is whole."""
    import pyarrow.parquet as pq

    if (folder / "run.json").exists():
        json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for table in folder.rglob("[!.]*.parquet"):
        pq.read_table(table)
    return {
        "done": len(list(folder.glob("parts/[!.]*.turns.parquet"))),
        "unfinished": [file.name for file in folder.rglob(".*.part")],
    }


if __name__ == "__main__":
    print(json.dumps(drive(**json.loads(sys.argv[1]))))
