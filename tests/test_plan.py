"""`talon-bench plan`: sizes against hand counts and real models, jobs against Hydra's own, refusals, and the program itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import ToyFolders
from talon_bench.errors import UsageError
from talon_bench.methods import AutoregressiveConfig, ChainConfig, EagleConfig, TalonConfig
from talon_bench.plan import checkpoints, pace
from talon_bench.plan.config import PlanConfig
from talon_bench.plan.devices import GIB, Device, bandwidth_of, resolve
from talon_bench.plan.jobs import expand
from talon_bench.plan.memory import Engine, HeadSize, Work, on_device, on_host
from talon_bench.plan.plan import Plan, make_plan
from talon_bench.plan.show import as_json, duration, gib, refusal
from talon_bench.plan.sizes import architecture_of, cache_bytes, head_parameters, target_size
from talon_bench.schema import ArchitectureConfig
from toy_runs import CommandLine, assert_refused, toy_overrides
from toys import ARCHITECTURES, KINDS

LLAMA_8B = ArchitectureConfig("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 131072)
LLAMA_70B = ArchitectureConfig("llama", 80, 8192, 28672, 64, 8, 128, 128256, False, 131072)
QWEN2_7B = ArchitectureConfig("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, False, 32768)
QWEN3_8B = ArchitectureConfig("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, False, 40960)
SMOLLM2 = ArchitectureConfig("llama", 30, 576, 1536, 9, 3, 64, 49152, True, 8192)
H200 = Device("H200", "cuda", int(139.8 * GIB), 4.8e12)


@pytest.fixture
def cli(
    toy_folders: ToyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    command = CommandLine(monkeypatch, capfd, toy_overrides(toy_folders, tmp_path))
    command.base.insert(0, "plan")
    return command


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache, and a network that answers nothing."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan must not open a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)


@pytest.mark.parametrize(
    ("architecture", "published"),
    [
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        (QWEN2_7B, 7_615_616_512),
        (QWEN3_8B, 8_190_735_360),
        (SMOLLM2, 134_515_008),
    ],
)
def test_parameters_are_those_that_the_models_are_published_with(
    architecture: ArchitectureConfig, published: int
) -> None:
    assert target_size(architecture).total == published


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sizes_equal_those_of_the_toy_models(toy_folders: ToyFolders, name: str) -> None:
    folder = toy_folders.target(name)
    architecture = architecture_of(checkpoints.read_config(folder))
    assert target_size(architecture).total == checkpoints.stored(folder).parameters


@pytest.mark.parametrize("kind", KINDS)
def test_a_heads_parameters_are_counted_from_its_file(toy_folders: ToyFolders, kind: str) -> None:
    folder = toy_folders.head("llama", kind)
    found = checkpoints.stored(folder)
    assert found.bytes == (folder / "model.safetensors").stat().st_size
    # H = 32, an own MLP of 40, 4 heads of 8; EAGLE-1 with two key/value heads and a bias, EAGLE-3 with four and 80 rows.
    eagle = 2 * 32 * 32 + 32 + (32 * 32 + 2 * 16 * 32 + 32 * 32) + 3 * 32 * 40 + 32
    eagle3 = 3 * 32 * 32 + (3 * 32 * 64 + 32 * 32) + 3 * 32 * 40 + 4 * 32 + 80 * 32
    assert found.parameters == {"eagle": eagle, "eagle3": eagle3}[kind]


def test_head_sizes_of_an_8b_target() -> None:
    """EAGLE3-LLaMA3.1-Instruct-8B: fc 4096 x 12288, q 4096 x 8192, k and v 1024 x 8192, o, MLP, four norms, 32000 rows."""
    by_hand = 4096 * 12288 + 4096 * 8192 + 2 * 1024 * 8192 + 4096**2 + 3 * 4096 * 14336 + 4 * 4096 + 32000 * 4096
    assert head_parameters("eagle3", LLAMA_8B, 32000) == by_hand
    eagle = 4096 * 8192 + 2 * 4096**2 + 2 * 1024 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    assert head_parameters("eagle2", LLAMA_8B, None) == eagle
    assert head_parameters("eagle3", LLAMA_8B, None) == by_hand + (128256 - 32000) * 4096


def test_cache_of_an_8b_target_is_128_kib_a_token() -> None:
    assert cache_bytes(LLAMA_8B, 1000, 2) == 1000 * 128 * 1024


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_config_without_sizes_is_refused(key: str) -> None:
    config = dict.fromkeys(
        ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"), 8
    )
    config.pop(key)
    with pytest.raises(UsageError, match=f"config.json has no {key}"):
        architecture_of(config)


WORK = Work(prompt=1000, cap=1024, budget=60, width=58, sampled=False)
HEAD = HeadSize("head", "eagle3", 425_000_000, 850_000_000, 32000)


def test_memory_of_an_8b_run_on_a_gpu() -> None:
    memory = on_device(LLAMA_8B, Engine("bfloat16", fused=False, gpus=1), [HEAD], WORK, cpu=False)
    assert memory.weights == 2 * 8_030_261_248
    assert memory.copies == 0
    assert memory.cache == (1000 + 1024 + 1 + 60) * 128 * 1024
    assert memory.heads == 850_000_000
    assert memory.logits == 60 * 128256 * (2 + 4)
    assert 16.9 * GIB < memory.total < 17.5 * GIB
    assert on_host(LLAMA_8B, Engine("bfloat16", fused=False, gpus=1), [HEAD]) > 2 * 8_030_261_248 + 850_000_000


def test_the_cpu_engine_adds_a_float32_projection() -> None:
    stock = on_device(SMOLLM2, Engine("bfloat16", fused=False, gpus=1), [], WORK, cpu=True)
    fused = on_device(SMOLLM2, Engine("bfloat16", fused=True, gpus=1), [], WORK, cpu=True)
    layers = 134_515_008 - 49152 * 576 - 576
    assert (stock.copies, fused.copies) == (0, 4 * 49152 * 576 + 2 * layers)
    assert fused.weights == stock.weights == 2 * 134_515_008


def test_float32_doubles_weights_and_cache() -> None:
    half = on_device(LLAMA_8B, Engine("float16", fused=False, gpus=1), [HEAD], WORK, cpu=False)
    full = on_device(LLAMA_8B, Engine("float32", fused=False, gpus=1), [HEAD], WORK, cpu=False)
    assert (full.weights, full.cache) == (2 * half.weights, 2 * half.cache)


def test_spreading_layers_divides_weights_but_not_the_ends() -> None:
    whole = on_device(LLAMA_70B, Engine("bfloat16", fused=False, gpus=1), [], WORK, cpu=False)
    half = on_device(LLAMA_70B, Engine("bfloat16", fused=False, gpus=2), [], WORK, cpu=False)
    assert half.cache * 2 == whole.cache
    ends = 2 * 128256 * 8192 * 2
    assert half.weights == (whole.weights - ends) // 2 + 8192 + ends, "the last norm, and the ends, are not halved"
    thirds = on_device(LLAMA_70B, Engine("bfloat16", fused=False, gpus=3), [], WORK, cpu=False)
    layer = target_size(LLAMA_70B).layer
    assert half.weights - thirds.weights == (40 - 27) * layer * 2


@given(prompt=st.integers(1, 4000), cap=st.integers(1, 2000), budget=st.integers(1, 200), sampled=st.booleans())
def test_more_work_never_needs_less_memory(prompt: int, cap: int, budget: int, sampled: bool) -> None:
    engine = Engine("bfloat16", fused=False, gpus=1)

    def need(*work: int) -> int:
        return on_device(LLAMA_8B, engine, [HEAD], Work(*work, sampled=sampled), cpu=False).total

    least = need(prompt, cap, budget, budget)
    assert need(prompt + 1, cap, budget, budget) > least
    assert need(prompt, cap + 1, budget, budget) > least
    assert need(prompt, cap, budget + 1, budget) > least


def test_the_baseline_of_the_paper_comes_out_as_the_paper_has_it() -> None:
    """Llama-3.1-8B on an H200: 264 tokens/s at a speedup of 3.75 are 70 plain tokens/s; a draft pass costs 0.083 of one."""
    head = HeadSize("head", "eagle3", head_parameters("eagle3", LLAMA_8B, 32000), 0, 32000)
    times = pace.pace(LLAMA_8B, Engine("bfloat16", fused=False, gpus=1), [head], H200, context=500, embedded=False)
    assert 1 / times.plain == pytest.approx(70.4, rel=0.02)
    assert times.drafts["eagle3"] / times.plain == pytest.approx(0.083, rel=0.02)
    assert times.verify(60) == times.plain


def test_time_is_tokens_by_mat_by_passes() -> None:
    times = pace.Pace(0.010, {"eagle3": 0.001}, ((1, 1.0),), "")
    ar = AutoregressiveConfig(name="ar", label="AR")
    eagle = EagleConfig(name="e", label="E", head="eagle3")
    assert pace.seconds(ar, times, 1000, "cuda") == pytest.approx(10.0)
    assert pace.seconds(eagle, times, 1000, "cuda") == pytest.approx(1000 / 5.0 * (0.010 + 8 * 0.001))
    chain = ChainConfig(name="c", label="C", head="eagle3", length=2)
    assert pace.seconds(chain, times, 1000, "cuda") == pytest.approx(1000 / 2.0 * (0.010 + 2 * 0.001))
    talon = pace.round_of(TalonConfig(name="t", label="T", head="eagle3"), "cuda")
    assert (talon.mat, talon.nodes) == (5.0, 60)
    assert talon.passes == pytest.approx(7.06, abs=0.01)


def test_a_cpu_pays_for_nodes_as_measured() -> None:
    cpu = Device("this CPU", "cpu", 16 * GIB, 24e9)
    times = pace.pace(SMOLLM2, Engine("bfloat16", fused=True, gpus=1), [], cpu, context=200, embedded=True)
    rows = json.loads((Path(__file__).parents[1] / "results/reference/verify_cost_bfloat16.json").read_text())["rows"]
    by_tokens = {row["tokens"]: row["ms_median"] / 1e3 for row in rows}
    assert times.plain == pytest.approx(by_tokens[1])
    assert times.verify(60) == pytest.approx(by_tokens[60])
    assert by_tokens[6] < times.verify(7) < by_tokens[8]
    other = pace.pace(SMOLLM2, Engine("bfloat16", fused=True, gpus=1), [], cpu, context=200, embedded=False)
    assert other.verify(60) / other.plain == pytest.approx(times.verify(60) / times.plain)


def test_devices_by_name_and_by_what_the_driver_says() -> None:
    assert resolve("L40S", "auto") == Device("L40S", "cuda", int(44.4 * GIB), 864e9)
    assert resolve("cpu", "auto").kind == "cpu"
    assert resolve(None, "cpu").kind == "cpu"
    assert bandwidth_of("NVIDIA A100-SXM4-40GB", 39 * GIB) == 1555e9
    assert bandwidth_of("NVIDIA A100-SXM4-80GB", 79 * GIB) == 2039e9
    assert bandwidth_of("NVIDIA H200", 140 * GIB) == 4800e9
    assert bandwidth_of("NVIDIA GeForce RTX 4090", 23 * GIB) == 1008e9
    assert bandwidth_of("Some GPU", 8 * GIB) == 1000e9


def test_jobs_are_the_product_of_the_lists() -> None:
    jobs = expand(["+experiment=table1", "decode.temperature=0,1", "target=qwen3_8b"], multirun=False)
    found = [(config.target.name, config.dataset.name, config.decode.temperature) for _, config in jobs]
    sets = ["mt_bench", "humaneval", "gsm8k", "alpaca", "qa", "cnn_dm"]
    assert sorted(found) == sorted(("qwen3-8b", name, float(t)) for name in sets for t in (0, 1))
    with pytest.raises(UsageError, match="add -m to plan one job for each"):
        expand(["dataset=gsm8k,mbpp"], multirun=False)
    assert [config.dataset.name for _, config in expand(["dataset=gsm8k,mbpp"], multirun=True)] == ["gsm8k", "mbpp"]
    with pytest.raises(UsageError, match="is no list of values"):
        expand(["method.alpha=interval(0.1,0.5)"], multirun=True)


def planned(*overrides: str, **options: object) -> Plan:
    return make_plan(expand(overrides, multirun=True), PlanConfig(**options))


def test_a_plan_shares_downloads_and_names_what_is_missing() -> None:
    plan = planned("+experiment=table2", "target=llama31_8b,vicuna_7b", "dataset=gsm8k,mbpp", gpu="H200")
    assert [job.name for job in plan.jobs] == [
        *("llama-3.1-8b x gsm8k", "llama-3.1-8b x mbpp", "vicuna-7b x gsm8k", "vicuna-7b x mbpp"),
    ]
    assert {job.target: set(job.left_out) for job in plan.jobs}["vicuna-7b"] == {"eagle3", "talon"}
    kinds = [download.kind for download in plan.downloads]
    assert (kinds.count("target"), kinds.count("data set")) == (2, 2)
    target = next(one for one in plan.downloads if one.name == "llama-3.1-8b")
    assert (target.bytes, target.cached, target.gated) == (2 * 8_030_261_248, False, True)
    assert plan.refused == []
    assert refusal(plan) is None
    result = as_json(plan)
    assert json.loads(json.dumps(result)) == result
    assert (result["fits"], len(result["jobs"])) == (True, 4)
    assert result["download_bytes"] == sum(one.bytes for one in plan.downloads)


def test_a_cached_checkpoint_is_not_fetched_again(tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B-Instruct"
    snapshot = hub / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("a" * 40)
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
    (snapshot / "config.json").write_text(json.dumps(config))
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))

    def cached() -> bool:
        plan = planned("target=llama31_8b", "target.revision=null", gpu="H200")
        return next(one.cached for one in plan.downloads if one.kind == "target")

    assert not cached(), "the shard that the index names is not there"
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3)}, snapshot / "one.safetensors")
    assert cached()


def test_what_does_not_fit_is_refused_with_need_and_fix() -> None:
    plan = planned("target=llama31_8b", "target.dtype=float32", gpu="RTX4090")
    line = refusal(plan)
    need = gib(plan.jobs[0].memory.total)
    assert line == (
        f"job 1, llama-3.1-8b x gsm8k, needs {need} GiB, RTX4090 has 23.5 GiB;"
        " spread it over launch.shard=2 GPUs, or choose a larger one with plan.gpu"
    )
    spread = planned("target=llama31_8b", "target.dtype=float32", "launch.shard=4", gpu="RTX4090")
    assert (refusal(spread), spread.jobs[0].gpus, spread.jobs[0].notes) == (None, 4, [])
    asked = planned("target=llama31_8b", "target.dtype=float32", gpu="RTX4090", gpus=4)
    assert asked.jobs[0].memory == spread.jobs[0].memory
    assert asked.jobs[0].notes == ["spread over 4 GPUs: run it with launch.shard=4"]


def test_long_prompts_are_cut_to_the_window() -> None:
    plan = planned(
        "target=llama2_7b", "lineup=baseline", "method=talon_eagle2", "dataset=cnn_dm", "data.source=hub", gpu="H200"
    )
    job = plan.jobs[0]
    assert job.work.positions == 4096 + 1
    assert any("do not fit the window of 4096" in note for note in job.notes)


def test_answer_tokens_scale_the_time() -> None:
    whole = planned("target=llama31_8b", "decode.max_new_tokens=1000", gpu="H200")
    half = planned("target=llama31_8b", "decode.max_new_tokens=1000", gpu="H200", answer_tokens=500)
    assert half.seconds == pytest.approx(whole.seconds / 2)
    over = planned("target=llama31_8b", "decode.max_new_tokens=1000", gpu="H200", answer_tokens=5000)
    assert over.seconds == whole.seconds


def test_the_hub_is_asked_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(name: str, hub: str, revision: str | None) -> checkpoints.Remote:
        asked.append(hub)
        return checkpoints.Remote(123, True, "mit", "b" * 40)

    monkeypatch.setattr("talon_bench.plan.plan.ask_hub", ask)
    planned("target=llama31_8b", gpu="H200")
    assert asked == []
    plan = planned("target=llama31_8b", gpu="H200", check_hub=True)
    assert asked == ["meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"]
    assert {one.bytes for one in plan.downloads if one.kind != "data set"} == {123}


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", down)
    with pytest.raises(UsageError, match=r"the hub says nothing of a/b \(ConnectionError\)"):
        checkpoints.ask_hub("x", "a/b", None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(12, "12 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_command_plans_the_toys(cli: CommandLine, toy_folders: ToyFolders) -> None:
    result = cli("dataset=gsm8k,mt_bench", "-m", "plan.gpu=cpu")
    assert (result.status, result.notes) == (0, [])
    last = result.last
    assert [(job["dataset"], job["prompts"]["count"], job["prompts"]["source"]) for job in last["jobs"]] == [
        ("gsm8k", 4, "local"),
        ("mt_bench", 3, "local"),
    ]
    assert last["jobs"][0]["methods"] == ["ar", "eagle3_small", "talon_small"]
    assert {download["cached"] for download in last["downloads"]} == {True}
    assert str(toy_folders.target("llama").parent) not in result.out, "no path of this machine"
    assert "0.0 GB to download" in result.out


def test_the_command_ends_with_status_2_where_a_job_does_not_fit(cli: CommandLine) -> None:
    cli.base = ["plan", "+experiment=table1", "target=vicuna_13b", "dataset=qa,gsm8k"]
    result = cli("plan.gpu=RTX4090")
    assert result.status == 2
    assert len(result.notes) == 1
    assert result.notes[0].startswith("error: job ")
    assert "(and 1 more of 2 jobs), needs " in result.notes[0]
    assert result.last["fits"] is False
    assert [job["fits"] for job in result.last["jobs"]] == [False, False]


BAD = {
    "mistyped option": (["plan.gpuu=H200"], "unknown option plan.gpuu; expected one of plan.gpu, plan.gpus"),
    "option without a value": (["plan.gpu"], "plan.gpu has no value; write plan.gpu=VALUE"),
    "unknown GPU": (["plan.gpu=V100"], "plan.gpu is V100; expected one of H200, H100-80"),
    "no number": (["plan.gpus=two"], "Value 'two' of type 'str' could not be converted to Integer"),
    "no GPUs": (["plan.gpus=0"], "plan.gpus is 0; give 1 or more"),
    "GPUs on a CPU": (["plan.gpu=cpu", "plan.gpus=2"], "plan.gpus is 2 with plan.gpu=cpu"),
    "answers of nothing": (["plan.answer_tokens=0"], "plan.answer_tokens is 0; give 1 or more"),
    "switch": (["--cfg"], "plan has no switch --cfg; expected -m"),
    "second word": (["doctor"], "doctor is no override; expected GROUP=NAME"),
    "mistyped key": (["decode.temprature=1"], "Could not override 'decode.temprature'"),
    "unknown experiment": (["+experiment=table9"], "Could not find 'experiment/table9'"),
    "bad value of the run": (["method.alpha=2"], "method talon_small: alpha is 2.0"),
    "list without -m": (["dataset=gsm8k,mbpp"], "dataset=gsm8k,mbpp lists several values; add -m"),
    "no target folder": (["target.path=/nonexistent"], "toy: there is no folder /nonexistent"),
    "no sizes": (["target.path=null", "target.hub=a/b"], "target toy: no config.json of it is here and target.archit"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_one_clear_line(cli: CommandLine, case: str) -> None:
    arguments, message = BAD[case]
    assert_refused(cli(*arguments), message)


def test_help_lists_every_option(cli: CommandLine) -> None:
    result = cli("--help")
    assert result.status == 0
    for option in ("plan.gpu=null", "plan.gpus=null", "plan.answer_tokens=null", "plan.check_hub=false"):
        assert option in result.out


def program(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "talon_bench", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def test_the_program_plans_table_1_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = program("plan", "+experiment=table1", "plan.gpu=H200", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["command"] == "plan"
    assert len(last["jobs"]) % 6 == 0
    assert all(math.isfinite(job["memory_total"]) and job["fits"] for job in last["jobs"])
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_word_is_one_line(tmp_path: Path) -> None:
    done = program("plam", "+experiment=table1", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: unknown command plam; expected plan, doctor or gpu-check as the first word")
