"""The draft-head loader: where each setting comes from, and which values are refused."""

from __future__ import annotations

import pytest
import torch

from tiny_heads import (
    CONFIG,
    EAGLE3_CONFIG,
    EAGLE3_NAMES,
    EAGLE_NAMES,
    IDS,
    H,
    eagle3_folder,
    eagle3_tensors,
    eagle_tensors,
    load,
    refusal,
    renamed,
    t2d,
    write,
)


def test_key_value_heads_default_to_heads(tmp_path):
    config = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}
    message = refusal(write(tmp_path, config, renamed(eagle_tensors(), EAGLE_NAMES)))
    assert "k_proj.weight has shape (4, 8), expected (8, 8)" in message


def test_head_dim_comes_from_the_tensors(tmp_path):
    head = load(eagle3_folder(tmp_path / "a", head_dim=4))
    assert (head.spec.head_dim, head.spec.origins["head_dim"]) == (4, "config.json: head_dim")
    head = load(eagle3_folder(tmp_path / "b", head_dim=128))
    assert head.spec.head_dim == 4
    assert "config.json: head_dim = 128 ignored" in head.spec.origins["head_dim"]
    wide = {f"midlayer.self_attn.{p}_proj.weight": torch.ones(r, 2 * H) for p, r in {"q": 16, "k": 8, "v": 8}.items()}
    wide["midlayer.self_attn.o_proj.weight"] = torch.ones(H, 16)
    head = load(write(tmp_path / "c", EAGLE3_CONFIG, renamed(eagle3_tensors(), EAGLE3_NAMES) | wide))
    assert (head.spec.head_dim, head.spec.origins["head_dim"]) == (8, "tensors: rows of q_proj / heads")


@pytest.mark.parametrize(
    ("keys", "theta", "factor", "origin"),
    [
        ({"rope_scaling": None}, 5000.0, 1.0, "config.json: rope_theta"),
        ({"rope_theta": None}, 10000.0, 1.0, "default of the official code (no key)"),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 5000.0, 4.0, "config.json: rope_theta"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 5000.0, 2.0, "config.json: rope_theta"),
        (
            {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7e5}},
            7e5,
            1.0,
            "config.json: rope_parameters.rope_theta",
        ),
    ],
)
def test_rope_of_both_layouts(tmp_path, keys, theta, factor, origin):
    head = load(eagle3_folder(tmp_path, **keys))
    assert (head.spec.rope_theta, head.spec.rope_factor) == (theta, factor)
    assert head.spec.origins["rope_theta"] == origin
    assert head.warnings == ()


def test_rope_override_wins_and_is_told(tmp_path):
    folder = eagle3_folder(tmp_path / "a", rope_scaling={"type": "linear", "factor": 4.0})
    head = load(folder, rope_theta=123.0)
    assert (head.spec.rope_theta, head.spec.rope_factor) == (123.0, 4.0)
    assert head.spec.origins["rope_theta"] == "override"
    assert "the override of rope_theta is 0.0" in refusal(folder, rope_theta=0.0)

    folder = eagle3_folder(tmp_path / "b", rope_scaling={"rope_type": "llama3", "factor": 8.0})
    assert "rotary scaling 'llama3', expected null, 'default' or 'linear'" in refusal(folder)
    head = load(folder, rope_theta=5e5)
    assert (head.spec.rope_theta, head.spec.rope_factor) == (5e5, 1.0)
    assert head.warnings == ("rotary scaling 'llama3' of rope_scaling is ignored because rope_theta is overridden",)


def test_two_rotary_bases_warn(tmp_path):
    head = load(eagle3_folder(tmp_path, rope_parameters={"rope_theta": 1e6}))
    assert head.spec.rope_theta == 1e6
    assert "rope_parameters.rope_theta = 1e+06, rope_theta = 5000" in head.warnings[0]


def test_feature_layers_precedence(tmp_path):
    folder = eagle3_folder(tmp_path / "top", **{IDS: [1, 3, 8]})
    head = load(folder)
    assert head.spec.feature_layers == (1, 3, 8)
    assert head.spec.origins["feature_layers"] == f"config.json: {IDS} (entering layer k)"
    head = load(folder, feature_layers=(9, 0, 3))
    assert (head.spec.feature_layers, head.spec.origins["feature_layers"]) == ((0, 3, 9), "override")

    both = eagle3_folder(tmp_path / "both", **{IDS: [1, 3, 8], "eagle_config": {IDS: [0, 2, 7]}})
    assert load(both).spec.feature_layers == (1, 3, 8)
    clash = eagle3_folder(tmp_path / "clash", **{IDS: [1, 3, 8], "eagle_config": {IDS: [1, 3, 8]}})
    assert f"{IDS} means (1, 3, 8), eagle_config means (2, 4, 9); set feature_layers" in refusal(clash)

    null = load(eagle3_folder(tmp_path / "null", **{IDS: None}))
    assert null.spec.feature_layers == (2, 5, 7)
    assert "GUESSED" in null.warnings[0]


@pytest.mark.parametrize(
    ("keys", "said", "other"),
    [
        ({IDS: [1, 4, 6]}, "looks like outputs of layers", (1, 4, 6)),
        ({"eagle_config": {IDS: [2, 5, 7]}}, "looks like inputs of layers", (3, 6, 8)),
    ],
)
def test_the_other_id_convention_is_pointed_out(tmp_path, keys, said, other):
    head = load(eagle3_folder(tmp_path, **keys))
    assert head.spec.feature_layers == other
    assert said in head.warnings[0]
    assert "set feature_layers to (2, 5, 7)" in head.warnings[0]


def test_number_of_features_follows_fc(tmp_path):
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | t2d() | {"fc.weight": torch.ones(H, 4 * H)}
    folder = write(tmp_path, EAGLE3_CONFIG, tensors)
    assert load(folder, feature_layers=(1, 2, 3, 4)).spec.feature_layers == (1, 2, 3, 4)
    assert "fc.weight takes 4 distinct layers, each in 0..9 of target tiny" in refusal(folder)


@pytest.mark.parametrize("layers", [(2, 5), (2, 2, 5), (2, 5, 10), (-1, 2, 5)])
def test_feature_layers_that_do_not_fit(tmp_path, layers):
    message = refusal(eagle3_folder(tmp_path), feature_layers=layers)
    assert f"feature layers {layers} (override) do not fit" in message


def test_feature_layers_of_an_eagle1_head_are_refused(tmp_path):
    folder = write(tmp_path, CONFIG, renamed(eagle_tensors(), EAGLE_NAMES))
    assert "feature_layers is set, but an EAGLE-1/2 head has none" in refusal(folder, feature_layers=(1, 2, 3))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_act", "gelu", "hidden_act is 'gelu', expected 'silu'"),
        ("num_attention_heads", None, "no num_attention_heads"),
        ("num_attention_heads", 3, "q_proj has 8 rows for 3 heads"),
        ("num_key_value_heads", "1", "num_key_value_heads is '1', expected a positive integer"),
        ("rms_norm_eps", 0, "rms_norm_eps is 0, expected a positive number"),
        ("norm_output", 1, "norm_output is 1, expected true or false"),
        ("rope_theta", "1e4", "rope_theta is '1e4', expected a positive number"),
        ("rope_scaling", "linear", "rope_scaling is 'linear', expected an object or null"),
        ("rope_scaling", {"type": "linear"}, "rope_scaling.factor is None, expected a positive number"),
        ("rope_parameters", {"full_attention": {}}, "rope_parameters is split by layer type"),
        ("rope_parameters", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1.0"),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5, expected 1.0"),
        ("eagle_config", [1], "eagle_config is [1], expected an object"),
        (IDS, "2,5,7", f"{IDS} is '2,5,7', expected a list of integers"),
    ],
)
def test_bad_config_values(tmp_path, key, value, said):
    assert said in refusal(eagle3_folder(tmp_path, **{key: value}))


def test_eagle3_switch_on_an_eagle1_head(tmp_path):
    folder = write(tmp_path, CONFIG | {"norm_output": True}, renamed(eagle_tensors(), EAGLE_NAMES))
    assert "norm_output is set, but only EAGLE-3 heads have it" in refusal(folder)
