"""Bad requests of every kind: one clear line on stderr, exit status 2, and nothing left behind."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conftest import ToyFolders
from toy_runs import CommandLine, toy_overrides


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))


BAD = {
    "unknown key added": (["+foo=1"], "unknown key foo; expected one of data, dataset, decode"),
    "unknown key of a group added": (["+method.foo=1"], "unknown key method.foo; expected one of alpha, budget"),
    "deep unknown key added": (["+dataset.hub.foo=1"], "unknown key dataset.hub.foo; expected one of config, files"),
    "mistyped key": (["decode.temprature=1"], "Could not override 'decode.temprature'. Key 'temprature' not in"),
    "setting of another policy": (["method.depth=4"], "Could not override 'method.depth'. Key 'depth' not in 'TalonC"),
    "unknown option": (["target=nope"], "Could not find 'target/nope' Available options in 'target': dsl_8b"),
    "unknown group": (["+targets=smollm2"], "unknown key targets; expected one of"),
    "unknown experiment": (["+experiment=table9"], "Could not find 'experiment/table9' Available options"),
    "no override": (["alpha"], "Error parsing override 'alpha'"),
    "alpha 0": (["method.alpha=0"], "method talon_small: alpha is 0.0; expected a value in (0, 1]"),
    "alpha 1.5": (["method.alpha=1.5"], "method talon_small: alpha is 1.5; expected a value in (0, 1]"),
    "alpha nan": (["method.alpha=nan"], "method talon_small: alpha is nan; expected a value in (0, 1]"),
    "alpha no number": (["method.alpha=abc"], "Value 'abc' of type 'str' could not be converted to Float"),
    "budget 1": (["method.budget=1"], "method talon_small: budget is 1; expected 2 or more"),
    "budget no whole number": (["method.budget=2.5"], "Value '2.5' of type 'float' could not be converted to Integer"),
    "root_top_k = budget": (["method.root_top_k=6"], "root_top_k is 6 and budget 6; the budget counts the root"),
    "root_top_k 0": (["method.root_top_k=0"], "method talon_small: root_top_k is 0; expected 1 or more"),
    "init_layers 4": (["method.init_layers=4"], "method talon_small: init_layers is 4; expected 0 to 3"),
    "eagle budget 1": (["method=eagle3", "method.budget=1"], "method eagle3: budget is 1; expected 2 or more"),
    "eagle depth 0": (["method=eagle3", "method.depth=0"], "method eagle3: depth is 0; expected 1 or more"),
    "chain 0": (["method=chain", "method.length=0"], "method chain: length is 0; expected 1 or more"),
    "lookup 0": (["method=lookup", "method.max_ngram=0"], "method lookup: max_ngram is 0; expected 1 or more"),
    "orphan in a tree": (["method=eagle1", "method.tree=[[0],[1,0]]"], "tree node [1, 0] has no parent in the list"),
    "empty tree": (["method=eagle1", "method.tree=[]"], "method eagle1: the tree is empty; list at least one path"),
    "another method of the line-up": (["lineup.methods.eagle3_small.budget=0"], "method eagle3_small: budget is 0"),
    "sweep of no setting": (["+sweep=budget", "method=ar"], "sweep.field is budget, which method ar has not"),
    "sweep of another policy's": (
        ["+sweep=alpha", "method=eagle3"],
        "sweep.field is alpha, which method eagle3 has not",
    ),
    "sweep of nothing": (["+sweep=alpha", "sweep.values=[]"], "sweep.values is empty; list at least one value"),
    "sweep of a word": (["+sweep=alpha", "sweep.values=[x]"], "sweep.values holds x, which cannot be the alpha of tal"),
    "sweep of a bad value": (
        ["+sweep=alpha", "sweep.values=[0.1,2]"],
        "method talon_small[alpha=2]: alpha is 2.0; expec",
    ),
    "sweep past the budget": (
        ["+sweep=root_top_k"],
        "method talon_small[root_top_k=10]: root_top_k is 10 and budget 6",
    ),
    "temperature": (["decode.temperature=-1"], "temperature is -1.0; give 0 (greedy) or more"),
    "temperature nan": (["decode.temperature=nan"], "temperature is nan; give 0 (greedy) or more"),
    "top_p": (["decode.temperature=1", "decode.top_p=0"], "top_p is 0.0; give a value in (0, 1]"),
    "top_k without temperature": (["decode.top_k=5"], "top_p and top_k do nothing at temperature 0"),
    "cap 0": (["decode.max_new_tokens=0"], "decode.max_new_tokens is 0; give 1 or more"),
    "warm-up 0": (["run.warmup_tokens=0"], "run.warmup_tokens is 0; give 1 or more"),
    "limit 0": (["dataset.limit=0"], "dataset.limit=0: expected 1 or more"),
    "offset past the end": (["dataset.offset=99"], "dataset.offset=99 leaves nothing of 4 prompts"),
    "unknown id": (["dataset.ids=[zzz]"], "dataset.ids: gsm8k has no zzz"),
    "no such data folder": (["data.root=/nonexistent"], "data.root: found no such folder; set it to the folder"),
    "no file in the data folder": (
        ["dataset=humaneval"],
        "humaneval: found no file in data.root, looked for humaneval/",
    ),
    "unknown source": (["data.source=web"], "data.source=web: expected one of auto, local, hub, package, samples"),
    "no such target folder": (["target.path=/nonexistent"], "toy: there is no folder /nonexistent; give a local check"),
    "no target": (["target.path=null"], "target toy: no source given; set one of target.path, target.hub, target.emb"),
    "two targets": (["target.hub=a/b"], "target toy: path and hub given; set one of target.path, target.hub"),
    "unknown dtype": (["target.dtype=int8"], "target.dtype is int8; expected one of auto, bfloat16, float16, float32"),
    "no thinking switch": (["target.thinking=true"], "target.thinking=true: the chat template has no enable_thinking"),
    "broken chat template": (["target.chat_template='{% if %}'"], "target.chat_template: expected a Jinja template"),
    "no such head folder": (["head.eagle3.path=/nonexistent"], "local-eagle3: there is no folder /nonexistent"),
    "head of another target": (
        ["head=vicuna_13b", "head.eagle2.hub=null", "head.eagle3.hub=null"],
        "head EAGLE-Vicuna-13B-v1.3 belongs to target vicuna-13b, the run's target is toy; leave head= out to take",
    ),
    "head said to be another target's": (["head.eagle3.target=qwen"], "head local-eagle3 belongs to target qwen, the"),
    "two sources of a head": (["head.eagle3.hub=a/b"], "head local-eagle3: path and hub given; set one of path"),
    "feature layer out of range": (["head.eagle3.feature_layers=[1,2,99]"], "draft head local-eagle3: "),
    "no head of the kind": (
        ["head.eagle3.path=null"],
        "method eagle3_small needs a head of kind eagle3, target toy has",
    ),
    "no GPU": (["launch.device=cuda"], "launch.device is cuda; this machine has 0 GPUs that torch can use"),
    "no such device": (["launch.device=tpu"], "launch.device is tpu; expected auto, cpu, cuda or cuda:N"),
    "threads 0": (["launch.threads=0"], "launch.threads is 0; give 1 or more, or null"),
    "unknown tracker": (["tracking.kind=board"], "tracking.kind is board; expected one of none, wandb"),
    "run folder is a file": (["run.dir=/dev/null"], "/dev/null cannot be a run folder (File exists); set run.root or"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_one_clear_line(cli: CommandLine, case: str, tmp_path: Path) -> None:
    if case == "no GPU" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    overrides, message = BAD[case]
    result = cli(*overrides)
    assert result.status == 2
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("error: ")
    assert message in result.err
    runs = tmp_path / "runs"
    assert not runs.is_dir() or not list(runs.iterdir()), "a refused request leaves nothing behind"


def damaged_head(head: Path) -> None:
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])


def headless(head: Path) -> None:
    (head / "config.json").unlink()


@pytest.mark.parametrize("damage", [damaged_head, headless])
def test_a_damaged_head_is_one_clear_line(
    cli: CommandLine, toy_folders: ToyFolders, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    head = Path(shutil.copytree(toy_folders.head("llama", "eagle3"), tmp_path / "head"))
    damage(head)
    result = cli(f"head.eagle3.path='{head}'")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert result.err.startswith("error: draft head local-eagle3: ")


def test_a_run_folder_that_cannot_be_used_is_one_clear_line(cli: CommandLine, tmp_path: Path) -> None:
    where = f"run.dir='{tmp_path / 'here'}'"
    request = ("dataset.limit=1", "lineup=baseline", where)
    assert cli(*request).status == 0

    def refused(*overrides: str) -> str:
        result = cli(*request, *overrides)
        assert (result.status, result.out, result.err.count("\n")) == (2, "", 1), result.err
        return result.err.removeprefix(f"error: {tmp_path / 'here'}")

    assert refused("method.alpha=0.5").startswith(
        " holds a run of another configuration; set run.dir to another folder"
    )
    with (tmp_path / "here" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert refused().startswith(" is being written by another process; wait for it")
    turns = (tmp_path / "here" / "turns.parquet").read_bytes()
    (tmp_path / "here" / "turns.parquet").write_bytes(turns[:100])
    result = cli(*request)
    table = tmp_path / "here" / "turns.parquet"
    damaged = f"error: {table} is damaged: expected the table that a run writes, measure again"
    assert (result.status, result.notes) == (2, [damaged])
    (tmp_path / "here" / "turns.parquet").unlink()
    result = cli(*request)
    assert result.status == 2
    assert result.notes[0].startswith(f"error: {tmp_path / 'here'} lacks turns.parquet")
    (tmp_path / "here" / "run.json").write_text('{"schema": 1, "sta')
    assert refused().startswith("/run.json is damaged; set run.fresh=true to measure again")
    assert cli(*request, "run.fresh=true").status == 0


def test_a_bad_sweep_is_one_clear_line(cli: CommandLine, tmp_path: Path) -> None:
    result = cli("-m", "method.alpha=0.1,0.2", "+foo=1")
    assert (result.status, result.out) == (2, "")
    assert result.err.splitlines() == [result.notes[0]] * 2
    result = cli("-m", "target=local,nope")
    assert (result.status, result.err.count("\n")) == (2, 1)
    (tmp_path / "file").write_text("")
    result = cli("-m", "method.alpha=0.1,0.2", f"run.root='{tmp_path / 'file'}'")
    assert result.status == 2
    assert result.err.startswith("error: [Errno 17] File exists")
