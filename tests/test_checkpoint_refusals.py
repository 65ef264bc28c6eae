"""The draft-head loader: every defect of the files is refused by name, in one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tiny_heads import (
    CONFIG,
    DRAFT_IDS,
    EAGLE3_CONFIG,
    EAGLE3_NAMES,
    EAGLE_NAMES,
    TARGET,
    VD,
    H,
    M,
    V,
    eagle3_folder,
    eagle3_tensors,
    eagle_tensors,
    refusal,
    renamed,
    t2d,
    write,
)


def test_missing_and_unexpected_tensors_are_both_listed(tmp_path):
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | t2d() | {"mask_hidden": torch.ones(3)}
    del tensors["norm.weight"], tensors["d2t"]
    message = refusal(write(tmp_path, EAGLE3_CONFIG, tensors))
    assert "not the tensors of an eagle3 head: missing: d2t, norm.weight; unexpected: mask_hidden;" in message


@pytest.mark.parametrize("name", ["layers.0.input_layernorm.weight", "norm.weight", "lm_head.weight"])
def test_eagle1_has_no_norms_and_no_lm_head(tmp_path, name):
    folder = write(tmp_path, CONFIG, renamed(eagle_tensors(), EAGLE_NAMES) | {name: torch.ones(H)})
    assert f"missing: none; unexpected: {name.replace('layers.0.', 'layer.')};" in refusal(folder)


def test_part_of_the_attention_biases_is_refused(tmp_path):
    tensors = renamed(eagle_tensors(qkv_bias=True), EAGLE_NAMES)
    del tensors["layers.0.self_attn.v_proj.bias"]
    assert "missing: layer.self_attn.v_proj.bias; unexpected: none" in refusal(write(tmp_path, CONFIG, tensors))


def test_not_an_eagle_head(tmp_path):
    tensors = renamed(eagle_tensors(), EAGLE_NAMES)
    without = {key: tensor for key, tensor in tensors.items() if key != "fc.weight"}
    assert "not an EAGLE head: missing fc.weight; found layer." in refusal(write(tmp_path / "a", CONFIG, without))
    odd = tensors | {"fc.weight": torch.ones(H, 3 * H)}
    message = refusal(write(tmp_path / "b", CONFIG, odd))
    assert "not an EAGLE head: fc.weight (8, 24) with q_proj (8, 8)" in message


def test_more_than_one_layer_is_refused(tmp_path):
    tensors = renamed(eagle3_tensors(), EAGLE_NAMES)
    extra = {"layers.1.mlp.up_proj.weight": torch.ones(M, H)}
    assert "unsupported: 2 layers" in refusal(write(tmp_path / "a", EAGLE3_CONFIG, tensors | extra))
    folder = write(tmp_path / "b", EAGLE3_CONFIG | {"num_hidden_layers": 3}, tensors)
    assert "unsupported: 3 layers" in refusal(folder)


def test_two_tensors_of_one_name(tmp_path):
    tensors = renamed(eagle_tensors(), EAGLE_NAMES)
    twice = {"model.fc.weight": torch.ones(H, 2 * H)}
    assert "both fc.weight" in refusal(write(tmp_path, CONFIG, tensors | twice))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_head_of_another_target(tmp_path, kind):
    folder = eagle3_folder(tmp_path)
    if kind == "eagle":
        folder = write(tmp_path / "e", CONFIG, renamed(eagle_tensors(), EAGLE_NAMES))
    message = refusal(folder, replace(TARGET, hidden_size=16))
    assert "hidden size 8, but tiny has hidden size 16: the head belongs to another target" in message
    message = refusal(folder, replace(TARGET, vocab_size=20))
    assert "vocabulary 16, but tiny has vocabulary 20: the head belongs to another target" in message


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("midlayer.self_attn.o_proj.weight", (H, 3), "(8, 8)"),
        ("midlayer.mlp.down_proj.weight", (M, H), "(8, 12)"),
        ("lm_head.weight", (VD + 1, H), "(6, 8)"),
        ("norm.weight", (1, H), "(8,)"),
        ("d2t", (VD - 1,), "(6,)"),
        ("t2d", (V + 1,), "(16,)"),
    ],
)
def test_shapes_are_checked(tmp_path, name, shape, expected):
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | t2d()
    tensors[name] = torch.ones(shape, dtype=tensors[name].dtype)
    message = refusal(write(tmp_path, EAGLE3_CONFIG, tensors))
    assert f"{name.replace('midlayer', 'layer')} has shape {shape}, expected {expected} from config.json" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weights(tmp_path, value):
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | t2d()
    tensors["midlayer.mlp.up_proj.weight"][1, 2] = value
    message = refusal(write(tmp_path, EAGLE3_CONFIG, tensors))
    assert "layer.mlp.up_proj.weight holds NaN or infinite values" in message


def test_quantised_weights(tmp_path):
    tensors = renamed(eagle_tensors(), EAGLE_NAMES)
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.int8)
    assert "fc.weight is int8, expected one of float16" in refusal(write(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize(
    ("d2t", "marks", "said"),
    [
        (DRAFT_IDS, None, "d2t maps draft tokens to ids 1..20, expected offsets that stay in 0..15"),
        (torch.tensor([-1, 0, 0, 0, 0, 0]), None, "ids -1..5"),
        (torch.tensor([1, 0, 0, 0, 0, 0]), None, "d2t maps two draft tokens to one target id"),
        (DRAFT_IDS - torch.arange(VD), [1, 2, 5, 7, 11], "t2d marks 5 target ids, expected 6"),
        (DRAFT_IDS - torch.arange(VD), [0, 2, 5, 7, 11, 15], "t2d marks other target ids than d2t maps to"),
    ],
)
def test_vocabulary_maps_must_agree(tmp_path, d2t, marks, said):
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | {"d2t": d2t}
    if marks is not None:
        tensors["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, torch.tensor(marks), True)
    assert said in refusal(write(tmp_path, EAGLE3_CONFIG, tensors))


def test_missing_files(tmp_path):
    assert "no readable config.json in" in refusal(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    message = refusal(tmp_path)
    assert "no weights in" in message
    assert "expected one of model.safetensors" in message
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "config.json holds a list, expected an object" in refusal(tmp_path)


@pytest.mark.parametrize("form", ["safetensors", "bin", "sharded-safetensors", "sharded-bin"])
@pytest.mark.parametrize("kept", [0, 10, 700])
def test_truncated_weights(tmp_path, form, kept):
    eagle3_folder(tmp_path, form)
    file = sorted(tmp_path.glob(f"*.{form.removeprefix('sharded-')}"))[-1]
    file.write_bytes(file.read_bytes()[:kept])
    assert f"{file.name} is truncated or not a weight file" in refusal(tmp_path)


def test_bin_may_hold_only_tensors(tmp_path):
    write(tmp_path, CONFIG, {}, "bin")
    torch.save({"path": tmp_path}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin is truncated or not a weight file (objects other than tensors" in refusal(tmp_path)
    torch.save({"state_dict": eagle_tensors()}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin is not a plain state dict of tensors" in refusal(tmp_path)


def test_broken_indices(tmp_path):
    folder = tmp_path / "head"
    eagle3_folder(tmp_path)
    index = eagle3_folder(folder, "sharded-safetensors") / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": weight_map | {"gone.weight": next(iter(weight_map.values()))}}))
    assert "lists gone.weight, absent from the shards" in refusal(folder)
    index.write_text(json.dumps({"weight_map": weight_map | {"fc.weight": "../model.safetensors"}}))
    assert "names '../model.safetensors', not a file of the head's folder" in refusal(folder)
    index.write_text("{}")
    assert "model.safetensors.index.json has no weight_map" in refusal(folder)


def test_shards_may_not_repeat_a_tensor(tmp_path):
    eagle3_folder(tmp_path, "sharded-safetensors")
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    assert "repeats d2t of another shard" in refusal(tmp_path)
