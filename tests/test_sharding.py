"""Targets split over devices: who goes where, layer by layer, and that the numbers stay the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from accelerate import dispatch_model

from stock_reference import PARENTS, PROMPT, assert_verifies, path_to, tree_of
from talon_bench import target as target_module
from talon_bench.errors import UsageError
from talon_bench.loading import _is_static
from talon_bench.sharding import device_map, layer_devices, refuse_offloaded
from talon_bench.target import Target, why_eager
from toys import LAYERS

CPU, OTHER = torch.device("cpu"), torch.device("cpu:0")
"""torch tells the two apart, and computes across them as it would not across GPUs."""
GPU = torch.device("cuda")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """Two GPUs, with 20 and 10 GB free."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: ((20, 10)[number] * 10**9, 24 * 10**9))


@pytest.mark.parametrize(("shard", "found"), [("auto", {0: 18 * 10**9, 1: 9 * 10**9}), ("1", {0: 18 * 10**9})])
def test_layers_go_to_the_gpus_that_were_asked_for_and_leave_room_for_caches(shard, found, gpus):
    assert device_map(shard, GPU) == {"device_map": "auto", "max_memory": found}


def test_without_sharding_nothing_is_mapped():
    assert device_map("none", GPU) == device_map("none", CPU) == {}


@pytest.mark.parametrize(
    ("shard", "device", "expected"),
    [
        ("3", GPU, "launch.shard is 3; this machine has 2 GPUs"),
        ("2", CPU, "launch.shard is 2 and launch.device cpu; sharding needs GPUs, set launch.shard=none"),
        ("auto", CPU, "launch.shard is auto"),
    ],
)
def test_a_split_that_cannot_be_is_refused(shard, device, expected, gpus):
    with pytest.raises(UsageError, match=expected):
        device_map(shard, device)


def test_what_did_not_fit_is_named():
    model = SimpleNamespace(hf_device_map={"model.layers.0": 0, "model.layers.1": "disk", "lm_head": "cpu"})
    with pytest.raises(UsageError, match=r"big: 2 of its modules, the first model\.layers\.1, do not fit") as caught:
        refuse_offloaded(model, "big")
    assert "\n" not in str(caught.value)
    refuse_offloaded(SimpleNamespace(hf_device_map={"": 0}), "big")
    refuse_offloaded(SimpleNamespace(), "whole")


def test_a_layer_is_where_accelerate_runs_it_else_where_its_weights_are(stock):
    decoder = stock("llama").model
    assert layer_devices(decoder, GPU) == [CPU] * LAYERS
    for layer, device in zip(decoder.layers, (1, "cuda:3", torch.device("cuda:2"), None), strict=False):
        layer._hf_hook = SimpleNamespace(execution_device=device)
    expected = [torch.device("cuda", number) for number in (1, 3, 2)]
    assert layer_devices(decoder, GPU) == [*expected, *[CPU] * (LAYERS - 3)]


def test_a_split_target_falls_back_to_the_eager_engine_and_says_so(stock, capsys):
    model = stock("llama")
    assert _is_static("static", model, CPU, "toy")
    assert not _is_static("auto", model, CPU, "toy")
    assert not _is_static("eager", model, GPU, "toy")
    assert capsys.readouterr().err == ""
    for layer in model.model.layers[5:]:
        layer._hf_hook = SimpleNamespace(execution_device=1)
    assert why_eager(model) == "it is split over 2 devices"
    assert not _is_static("auto", model, GPU, "toy")
    assert capsys.readouterr().err == (
        "note: target toy runs on the eager engine, because it is split over 2 devices\n"
    )


def assert_decodes(target: Target, model: torch.nn.Module) -> None:
    target.allocate(64)
    target.prefill(PROMPT)
    tree = tree_of(PARENTS)
    assert_verifies(target, model, PROMPT, tree)
    path = path_to(PARENTS, 9)
    target.commit(path)
    assert_verifies(target, model, PROMPT + tree.tokens[path].tolist(), tree_of([-1]))


def test_a_target_with_layers_on_two_devices_gives_the_stock_numbers(stock, monkeypatch):
    devices = [CPU] * 3 + [OTHER] * (LAYERS - 3)
    monkeypatch.setattr(target_module, "layer_devices", lambda decoder, default: devices)
    target = Target.wrap(stock("llama"), "split")
    assert_decodes(target, stock("llama"))
    assert [block.shape[0] for block in target.cache._blocks] == [3, LAYERS - 3]


def test_a_target_dispatched_by_accelerate_gives_the_stock_numbers(stock, tmp_path):
    """Layers that lie on disk between passes: their hooks bring weights and inputs together, as between GPUs."""
    model = stock("llama")
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{number}": "disk" if number > 4 else "cpu" for number in range(LAYERS)}
    model = dispatch_model(model, device_map=places, main_device="cpu", offload_dir=str(tmp_path))
    assert next(model.model.layers[6].parameters()).is_meta
    assert layer_devices(model.model, GPU) == [CPU] * LAYERS
    target = Target.wrap(model, "dispatched")
    assert target.weight_bytes == Target.wrap(stock("llama"), "whole").weight_bytes
    assert_decodes(target, stock("llama"))
