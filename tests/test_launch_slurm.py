"""What Slurm is asked for, and what comes back from it: with stand-ins for its commands."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from conftest import ToyFolders
from toy_runs import CommandLine, toy_overrides

pytest.importorskip("submitit")


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))


SLURM = {
    "sbatch": """cp "$1" submission.sh
for task in 0 1; do
  SLURM_JOB_ID=$((100 + task)) SLURM_ARRAY_JOB_ID=100 SLURM_ARRAY_TASK_ID=$task SLURM_NTASKS=1 SLURM_PROCID=0 \\
    SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 bash "$1" >/dev/null 2>&1 &
done
echo "Submitted batch job 100\"""",
    "srun": 'while [[ $1 != *python* ]]; do shift; done\nexec "$@"',
    "sacct": "true",
}
"""Stand-ins for the commands of Slurm: an array of two jobs, both of which start at once."""


@pytest.mark.skipif(shutil.which("srun") is not None, reason="this machine has Slurm")
def test_slurm_is_refused_where_there_is_none(cli: CommandLine) -> None:
    result = cli("-m", "launch=slurm", "dataset=gsm8k,mt_bench")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert result.err.startswith("error: launch=slurm: ")
    assert "srun" in result.err


def test_slurm_gets_one_array_with_what_was_asked_for(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs are bad requests, which end before anything is loaded; their statuses and messages come back."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in SLURM.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    asked = ["partition=gpu", "minutes=90", "memory_gb=32", "workers=1", "setup=[echo ready]", "notice_s=60"]
    options = [*(f"launch.slurm.{text}" for text in asked), "+launch.slurm.options.nodelist=n01"]
    result = cli("-m", "launch=slurm", *options, "method.alpha=1.5,2")
    assert (result.status, result.out) == (2, ""), result.err
    for alpha in (1.5, 2.0):
        message = f"method talon_small: alpha is {alpha}; expected a value in (0, 1]"
        assert f"[method.alpha={alpha:g}] error: {message}" in result.err.splitlines()
    script = (tmp_path / "submission.sh").read_text().splitlines()
    assert {
        *("#SBATCH --array=0-1%1", "#SBATCH --partition=gpu", "#SBATCH --time=90", "#SBATCH --mem=32GB"),
        *("#SBATCH --gpus-per-node=1", "#SBATCH --cpus-per-task=8", "#SBATCH --nodelist=n01"),
        *("#SBATCH --signal=USR2@60", "#SBATCH --job-name=talon_bench", "echo ready"),
    } <= set(script)
