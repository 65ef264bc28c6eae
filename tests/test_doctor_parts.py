"""The doctor's checks one by one: chat templates, machines, settings of heads, verdicts from records."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from conftest import ToyFolders
from talon_bench.compose import compose_config
from talon_bench.doctor import files, machine
from talon_bench.doctor.chat import chat
from talon_bench.doctor.finding import Finding
from talon_bench.doctor.neighbours import Comparison, Guesses, Neighbour, judge, neighbours_of, paired
from talon_bench.doctor.probe import Probe, chain_of
from talon_bench.doctor.prompts import CONVERSATION, PROMPTS
from talon_bench.doctor.verdicts import acceptance, losslessness
from talon_bench.drafters.checkpoint import load_head
from talon_bench.methods import AutoregressiveConfig, TalonConfig
from talon_bench.plan.config import PlanConfig
from talon_bench.plan.jobs import expand
from talon_bench.plan.plan import make_plan
from talon_bench.prompts.chat import ChatRenderer
from talon_bench.schema import HeadConfig, TargetConfig
from talon_bench.target import Target
from toys import BOS, CHAT_TEMPLATE, EOS, VOCAB_SIZE, toy_tokenizer

TALON = TalonConfig(name="talon", label="TALON", head="eagle3")
AR = AutoregressiveConfig(name="ar", label="AR")


def test_a_finding_is_one_line() -> None:
    whole = Finding("warning", "load", "40 %", "at most 20 %", "stop it")
    assert whole.line == "warning load: 40 %; expected at most 20 %; stop it"
    assert Finding("ok", "torch", "2.13").line == "ok      torch: 2.13"


def test_prompts_cover_chat_code_and_maths_alike() -> None:
    kinds = [prompt.category for prompt in PROMPTS]
    assert kinds[:3] == ["chat", "code", "maths"]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"chat": 4, "code": 4, "maths": 4}
    assert len({prompt.id for prompt in PROMPTS}) == len({prompt.turns for prompt in PROMPTS}) == 12


def chat_levels(
    template: str | None = None, *, eos: frozenset[int] = frozenset(EOS), **switches: object
) -> dict[str, Finding]:
    renderer = ChatRenderer(toy_tokenizer(), chat_template=template, **switches)
    return {finding.subject: finding for finding in chat(renderer, eos, VOCAB_SIZE)}


def test_a_sound_template_is_ok() -> None:
    found = chat_levels()
    assert {finding.level for finding in found.values()} == {"ok"}
    assert "2 (</s>), 4 (<|im_end|>)" in found["end of answer"].found
    assert "assistant" in found["chat template"].found


def test_bos_written_twice_is_a_fault_and_once_is_ok() -> None:
    assert chat_levels("{{ bos_token }}" + CHAT_TEMPLATE)["begin of text"].found == f"one BOS, {BOS} (<s>)"
    twice = chat_levels("{{ bos_token }}{{ bos_token }}" + CHAT_TEMPLATE)["begin of text"]
    assert (twice.level, twice.found) == ("fault", "two BOS")


def test_a_template_without_the_bos_that_the_tokenizer_adds_is_a_warning() -> None:
    tokenizer = toy_tokenizer()
    tokenizer.add_bos_token = True
    found = {one.subject: one for one in chat(ChatRenderer(tokenizer), frozenset(EOS), VOCAB_SIZE)}
    assert found["begin of text"].level == "warning"


def test_ends_of_answers() -> None:
    assert chat_levels(eos=frozenset())["end of answer"].level == "fault"
    assert chat_levels(eos=frozenset({VOCAB_SIZE}))["end of answer"].level == "fault"


def test_templates_that_lose_turns_or_the_generation_prompt() -> None:
    only_last = "{{ messages[-1]['content'] }}<|im_start|>assistant"
    assert chat_levels(only_last)["chat template"].level == "fault"
    no_prompt = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert chat_levels(no_prompt)["chat template"].level == "warning"
    strange = CHAT_TEMPLATE.replace("assistant", "assistänt")
    assert chat_levels(strange)["special tokens"].level == "warning"


def test_thinking_left_open_is_a_warning() -> None:
    template = CHAT_TEMPLATE + "{% if enable_thinking %}<think>{% endif %}"
    assert chat_levels(template)["thinking"].level == "warning"
    assert chat_levels(template, thinking=False)["thinking"].found == "off"
    assert chat_levels(template, thinking=True)["thinking"].found == "on"


def test_the_conversation_has_two_user_turns() -> None:
    assert [message["role"] for message in CONVERSATION] == ["user", "assistant", "user"]


def test_versions_against_what_the_package_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {finding.level for finding in files.versions()} == {"ok"}
    installed = importlib.metadata.version("torch")
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ["torch>=99", "transformers<99,>=5", "x; extra == 'y'"]
    )
    found = {finding.subject: finding for finding in files.versions()}
    assert (found["torch"].level, found["torch"].found, found["torch"].expected) == ("fault", installed, "torch>=99")
    assert found["transformers"].level == "ok"


def test_checkpoints_that_are_not_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config = compose_config(["target=llama31_8b"])
    target, head = files.checkpoints(config, ["eagle3"])
    assert (target.level, head.level) == ("warning", "warning")
    assert "accept the licence of meta-llama/Llama-3.1-8B-Instruct on the hub" in target.fix
    assert target.subject == "target checkpoint"


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str, status: int = 0) -> None:
    """An `nvidia-smi` on PATH that prints these rows."""
    file = folder / "nvidia-smi"
    file.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows) + f"exit {status}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_other_processes_on_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._gpu_processes(device, None).level == "warning"
    assert machine._gpu_processes(device, 0).level == "ok"
    assert machine._gpu_processes(device, 2).found == "2 others"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    smi(tmp_path, monkeypatch, f"{os.getpid()}, /usr/bin/python, 900", "7, /opt/bin/train, 20480")
    found = machine._gpu_processes(device, 5)
    assert (found.level, found.found) == ("warning", "1 others (train 20480 MiB)")
    smi(tmp_path, monkeypatch, f"{os.getpid()}, /usr/bin/python, 900")
    assert machine._gpu_processes(device, 5).level == "ok"
    smi(tmp_path, monkeypatch, "no devices", status=9)
    assert machine._gpu_processes(device, 5).found == "5 others"


def test_a_busy_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 60.0)
    found = {finding.subject: finding for finding in machine.device_and_load("cpu")}
    assert (found["load"].level, found["load"].found) == ("warning", "60% of the cores used by others")
    assert found["device"].found.startswith("CPU, ")


def test_too_little_memory_or_disk_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "not" / "made"))
    plan = make_plan(expand(["target=llama31_8b", "launch.device=cpu"], multirun=False), PlanConfig(gpu="cpu"))
    need = plan.jobs[0].memory.total

    def free(memory: int, disk: int) -> list[str]:
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=memory))
        monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=disk))
        return [finding.level for finding in machine.memory_and_disk(plan, "cpu")]

    assert free(need, 10**12) == ["ok", "ok"]
    assert free(need - 1, 10**12) == ["fault", "ok"]
    assert free(need, 10**9) == ["ok", "fault"]


def test_neighbours_of_a_head(toy_folders: ToyFolders, toy_target) -> None:
    target: Target = toy_target("llama")
    spec = load_head(toy_folders.head("llama", "eagle3"), target.shape, name="x").spec
    assert spec.feature_layers == (2, 4, 5)
    found = [(one.setting, one.value) for one in neighbours_of(spec, target)]
    assert found == [
        ("rope_theta", "500000"),
        ("rope_theta", "1e+06"),
        ("feature_layers", "[1,3,4]"),
        ("feature_layers", "[3,5,6]"),
    ]
    eagle = load_head(toy_folders.head("llama", "eagle"), target.shape, name="x").spec
    assert {one.setting for one in neighbours_of(eagle, target)} == {"rope_theta"}
    shifted = dataclasses.replace(spec, feature_layers=(0, 4, 7))
    assert [one.value for one in neighbours_of(shifted, target) if one.setting == "feature_layers"] == ["[2,4,5]"]


def guessed(share: float, positions: int = 1000) -> Guesses:
    right = torch.arange(positions) < share * positions
    return Guesses(right, torch.where(right, -0.5, -3.0))


def comparison(share: float, gain: float, error: float) -> Comparison:
    return Comparison(Neighbour("rope_theta", "10000", spec=None), share, gain, error)


@pytest.mark.parametrize(
    ("share", "gain", "level"),
    [(0.30, -0.5, "ok"), (0.42, 0.0, "ok"), (0.50, 0.06, "ok"), (0.43, 0.2, "warning"), (0.48, 0.2, "fault")],
)
def test_a_neighbour_must_be_clearly_better_to_count(share: float, gain: float, level: str) -> None:
    """A gain counts above three standard errors (0.02 each here), and is a fault from 5 % more right guesses on."""
    others = [comparison(share, gain, 0.02), comparison(0.1, -2.0, 0.02)]
    finding = judge("head.eagle3.rope_theta", "1e+06", guessed(0.42), others)
    assert finding.level == level
    assert finding.found.startswith("1e+06 guesses 42.0% of 1000 positions; 10000 ")
    if level != "ok":
        assert finding.fix == "set head.eagle3.rope_theta=10000, unless the head was trained with 1e+06"
    assert ("some do not differ beyond chance" in finding.found) == (level == "ok" and abs(gain) <= 0.06)


def test_guesses_are_paired_and_tokens_outside_the_draft_vocabulary_left_out() -> None:
    here = Guesses(torch.tensor([True, False, False]), torch.tensor([-1.0, -2.0, math.nan]))
    there = Guesses(torch.tensor([True, True, False]), torch.tensor([-1.5, -0.5, math.nan]))
    found = paired(Neighbour("rope_theta", "10000", spec=None), there, here)
    assert (found.share, found.gain) == (pytest.approx(2 / 3), pytest.approx(0.5))
    assert found.error == pytest.approx(1.0), "the gains are -0.5 and 1.5"
    assert not found.clear


def probe(**talon: object) -> Probe:
    """A probe of two prompts: AR, TALON with these columns on its second turn row, and a chain that accepts 3 of 4 times."""
    clean = {"status": "ok", "equals_ar": True, "margin": None, "diverged_at": None, "error": None, "turn": 0}
    turns = [
        {**clean, "prompt_id": "a", "method": "ar", "equals_ar": None},
        {**clean, "prompt_id": "b", "method": "ar", "equals_ar": None},
        {**clean, "prompt_id": "a", "method": "talon"},
        {**clean, "prompt_id": "b", "method": "talon", **talon},
        {**clean, "prompt_id": "a", "method": chain_of("eagle3")},
    ]
    rounds = [
        {"prompt_id": "a", "turn": 0, "method": "talon", "accepted": 2, "emitted": 3},
        *(
            {"prompt_id": "a", "turn": 0, "method": chain_of("eagle3"), "accepted": count, "emitted": count + 1}
            for count in (0, 1, 4, 2)
        ),
    ]
    return Probe(pd.DataFrame(turns), pd.DataFrame(rounds), [])


def test_acceptance_of_a_head_by_hand() -> None:
    first, mat = acceptance("eagle3", "head", probe(), 1.3)
    assert (first.level, first.found) == ("ok", "75.0% accepted")
    assert (mat.level, mat.found) == ("ok", "2.75 in chains of 4")
    assert acceptance("eagle3", "head", probe(), 2.76)[1].level == "fault"
    nothing = Probe(probe().turns, probe().rounds.iloc[:1], [])
    assert [finding.level for finding in acceptance("eagle3", "head", nothing, 1.0)] == ["warning", "fault"]


def test_equal_answers_are_ok() -> None:
    (finding,) = losslessness([AR, TALON], probe(), "float32")
    assert (finding.level, finding.found) == ("ok", "2 of 2 answers equal AR's, MAT 3.00")


@pytest.mark.parametrize(
    ("dtype", "margin", "level"),
    [
        ("bfloat16", 0.5, "ok"),
        ("bfloat16", 2.5, "fault"),
        ("float32", 0.001, "warning"),
        ("float32", 0.5, "fault"),
        ("bfloat16", math.inf, "fault"),
    ],
)
def test_answers_that_part_from_ars(dtype: str, margin: float, level: str) -> None:
    (finding,) = losslessness([AR, TALON], probe(equals_ar=False, margin=margin, diverged_at=7), dtype)
    assert finding.level == level
    assert finding.found.startswith("1 of 2 answers equal AR's")
    if level == "fault":
        assert "at prompt b, position 7" in finding.found


def test_missing_answers_are_a_fault() -> None:
    broken = probe(status="failed", error="RuntimeError: no\ntree", equals_ar=None)
    (finding,) = losslessness([AR, TALON], broken, "float32")
    assert finding.level == "fault"
    assert finding.found == "1 of 2 answers missing (RuntimeError: no tree)"


def test_a_head_is_named_by_where_it_comes_from() -> None:
    shipped = HeadConfig(name="x", target="smollm2-135m", shipped="smollm2-135m-eagle3")
    found = "ok      head.eagle3 checkpoint: x from shipped, 1 .safetensors file of 0.02 GB"
    assert files._checkpoint("head.eagle3", shipped).line == found
    target = TargetConfig(name="y", hub="a/b", gated=True, licence="llama3")
    assert "y from a/b, licence llama3, not on this machine" in files._checkpoint("target", target).found
