"""The command line: forms of a request, the last line, exit statuses, and one clear line for every bad request."""

from __future__ import annotations

import pytest

from conftest import ToyFolders
from toy_runs import CommandLine, toy_overrides


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))

def test_a(cli):
    import time
    log=[]
    for o in (["dataset.limit=2"],["dataset.limit=3"],["dataset.limit=3"],["dataset=mt_bench","decode.temperature=1"],["foo=3"],["launch.device=cuda"],["target.path=/nope"], ["-m","method.alpha=0.01,2"], ["+sweep=alpha","sweep.values=[abc]"],["+sweep=alpha","sweep.values=[1]"],["run.warmup_tokens=0"]):
        t=time.time()
        r = cli(*o)
        log.append((o,time.time()-t,r.status,r.out[-300:],r.err))
    for l in log: print(l)
    assert 0
