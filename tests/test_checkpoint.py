"""The draft-head loader: every writer's layout gives one canonical head."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from talon_bench.drafters.spec import HeadSpec, TargetShape
from tiny_heads import (
    CONFIG,
    EAGLE3_CONFIG,
    EAGLE3_NAMES,
    EAGLE_NAMES,
    IDS,
    SPEC,
    SPEC3,
    TARGET,
    VD,
    H,
    V,
    check,
    eagle3_folder,
    eagle3_tensors,
    eagle_tensors,
    load,
    refusal,
    renamed,
    t2d,
    write,
)

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TALON_BENCH_SHARED", ROOT.parent / "shared"))


@pytest.mark.parametrize("form", ["safetensors", "bin", "sharded-safetensors", "sharded-bin"])
def test_every_file_form_gives_the_same_head(tmp_path, form):
    head = load(eagle3_folder(tmp_path, form))
    check(head, SPEC3, eagle3_tensors(), "official")
    assert head.warnings == ()
    assert head.spec.origins["weights"].endswith("index.json") == form.startswith("sharded")


def test_midlayer_is_one_layer_whatever_the_config_counts(tmp_path):
    """EAGLE3-Vicuna1.3-13B's config.json has the 40 layers of its target."""
    check(load(eagle3_folder(tmp_path, num_hidden_layers=40)), SPEC3, eagle3_tensors(), "official")


@pytest.mark.parametrize(
    ("fc_bias", "qkv_bias", "keys"),
    [(True, False, {}), (False, False, {"bias": False}), (True, True, {"qkv_bias": True})],
)
def test_official_eagle1_biases_come_from_the_tensors(tmp_path, fc_bias, qkv_bias, keys):
    tensors = eagle_tensors(fc_bias, qkv_bias)
    write(tmp_path, CONFIG | keys, renamed(tensors, EAGLE_NAMES), "bin")
    check(load(tmp_path), replace(SPEC, fc_bias=fc_bias, attention_bias=qkv_bias), tensors, "official")


def test_eagle1_embedding_of_its_own_is_used(tmp_path):
    tensors = renamed(eagle_tensors(), EAGLE_NAMES)
    own = {"embed_tokens.weight": torch.ones(V, H)}
    head = load(write(tmp_path / "good", CONFIG, tensors | own))
    check(head, replace(SPEC, own_embedding=True), eagle_tensors() | own, "official")
    message = refusal(write(tmp_path / "bad", CONFIG, tensors | {"embed_tokens.weight": torch.ones(V - 1, H)}))
    assert "embed_tokens.weight has shape (15, 8), expected (16, 8)" in message


def test_official_eagle1_defaults(tmp_path):
    absent = (
        "rope_theta",
        "rms_norm_eps",
        "max_position_embeddings",
        "hidden_size",
        "intermediate_size",
        "vocab_size",
    )
    config = {key: value for key, value in CONFIG.items() if key not in absent}
    head = load(write(tmp_path, config, renamed(eagle_tensors(), EAGLE_NAMES)))
    defaults = replace(SPEC, rope_theta=10000.0, rms_norm_eps=1e-6, max_position_embeddings=2048)
    check(head, defaults, eagle_tensors(), "official")
    assert head.spec.origins["rope_theta"] == "default of the official code (no key)"
    assert head.spec.origins["intermediate_size"] == "tensors: rows of gate_proj"


def test_rotary_buffers_of_old_files_are_ignored(tmp_path):
    buffers = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    write(tmp_path, CONFIG, renamed(eagle_tensors(), EAGLE_NAMES) | buffers, "bin")
    check(load(tmp_path), SPEC, eagle_tensors(), "official")


def test_bin_in_the_format_before_zip(tmp_path):
    write(tmp_path, CONFIG, {})
    (tmp_path / "model.safetensors").unlink()
    state = renamed(eagle_tensors(), EAGLE_NAMES)
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    check(load(tmp_path), SPEC, eagle_tensors(), "official")


def test_specforge(tmp_path):
    config = EAGLE3_CONFIG | {"architectures": ["LlamaForCausalLMEagle3"]}
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES, "module.draft_model.") | t2d()
    check(load(write(tmp_path, config, tensors)), SPEC3, eagle3_tensors(), "specforge")


def test_angelslim(tmp_path):
    head = load(eagle3_folder(tmp_path, "bin", architectures=["Eagle3LlamaForCausalLM"]))
    check(head, SPEC3, eagle3_tensors(), "angelslim")


def speculators_config(**top: object) -> dict:
    layer = {key: value for key, value in CONFIG.items() if key not in ("architectures", "rope_theta")}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "tiny"}},
        "transformer_layer_config": layer | {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
        "draft_vocab_size": VD,
        "norm_before_residual": True,
        IDS: [2, 4, 6],
        **top,
    }


def test_speculators(tmp_path):
    own = {"embed_tokens.weight": torch.ones(V, H)}
    tensors = renamed(eagle3_tensors(), EAGLE_NAMES) | t2d() | own
    head = load(write(tmp_path / "a", speculators_config(), tensors))
    spec = replace(SPEC3, feature_layers=(2, 4, 6), norm_before_residual=True, own_embedding=True)
    check(head, spec, eagle3_tensors() | own, "speculators")
    assert head.warnings == ()
    assert head.spec.origins["rope_theta"] == "config.json: transformer_layer_config.rope_parameters.rope_theta"

    guessed = load(write(tmp_path / "b", speculators_config(**{IDS: None}), tensors))
    assert guessed.spec.feature_layers == (2, 5, 7)
    assert any(f"GUESSED feature layers (2, 5, 7): config.json has no {IDS}" in w for w in guessed.warnings)

    config = speculators_config()
    del config["norm_before_residual"]
    unsaid = load(write(tmp_path / "c", config, tensors))
    assert not unsaid.spec.norm_before_residual
    assert any("no norm_before_residual" in warning for warning in unsaid.warnings)


def test_speculators_leaves_out_class_defaults(tmp_path):
    target = TargetShape("wide", 64, 16, 10)
    gen = torch.Generator().manual_seed(5)
    layer = {"q": (64, 128), "k": (64, 128), "v": (64, 128), "o": (64, 64)}
    tensors = {f"layers.0.self_attn.{p}_proj.weight": torch.randn(s, generator=gen) for p, s in layer.items()}
    tensors |= {f"layers.0.mlp.{p}_proj.weight": torch.ones(12, 64) for p in ("gate", "up")}
    tensors |= {"layers.0.mlp.down_proj.weight": torch.ones(64, 12), "fc.weight": torch.ones(64, 192)}
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    tensors |= {f"layers.0.{norm}.weight": torch.ones(64) for norm in norms}
    tensors |= {"norm.weight": torch.ones(64), "lm_head.weight": torch.ones(16, 64)}
    config = speculators_config(transformer_layer_config={"hidden_size": 64}, draft_vocab_size=16)
    head = load(write(tmp_path, config, tensors), target)
    assert (head.spec.num_heads, head.spec.num_kv_heads, head.spec.head_dim) == (32, 32, 2)
    assert head.spec.origins["num_heads"] == "class default that speculators omits"
    assert head.spec.draft_vocab_size == 16
    assert "d2t" not in head.tensors


def test_model_optimizer_ids_name_outputs(tmp_path):
    switches = {"use_aux_hidden_state": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
    config = EAGLE3_CONFIG | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": switches | {IDS: [1, 4, 6]},
    }
    tensors = renamed(eagle3_tensors(), EAGLE_NAMES)
    head = load(write(tmp_path / "a", config, tensors))
    check(head, SPEC3, eagle3_tensors(), "model-optimizer")
    assert head.warnings == ()
    assert head.spec.origins["feature_layers"].endswith("(output of layer k, so k + 1)")

    guessed = load(write(tmp_path / "b", config | {"eagle_config": switches}, tensors))
    assert guessed.spec.feature_layers == (2, 5, 7)
    assert any("GUESSED" in warning for warning in guessed.warnings)

    for switch, value in {
        "use_aux_hidden_state": False,
        "use_last_layernorm": False,
        "use_mtp_layernorm": True,
    }.items():
        folder = write(tmp_path / switch, config | {"eagle_config": {switch: value}}, tensors)
        assert f"eagle_config.{switch} is {value}" in refusal(folder)


def test_vllm_eagle1_nested(tmp_path):
    config = {"model_type": "eagle", "architectures": ["EAGLEModel"], "eagle_fc_bias": True, "model": CONFIG}
    tensors = renamed(eagle_tensors(fc_bias=True), {"layer.": "model.model.layers.0."})
    own = {"embed_tokens.weight": torch.ones(V, H)}
    tensors |= {"lm_head.weight": torch.ones(V, H), "model.embed_tokens.weight": torch.ones(V, H)}
    head = load(write(tmp_path / "a", config, tensors))
    check(head, replace(SPEC, fc_bias=True, own_embedding=True), eagle_tensors(fc_bias=True) | own, "vllm-eagle1")
    assert head.spec.origins["rope_theta"] == "config.json: model.rope_theta"
    assert "dropped" in head.spec.origins["lm_head.weight"]
    message = refusal(write(tmp_path / "b", config, tensors | {"token_map": torch.arange(4)}))
    assert "unexpected: token_map" in message


def test_vllm_eagle1_top_level_wins_over_the_nested_model(tmp_path):
    top = {"rms_norm_eps": 1e-3, "rope_theta": None}
    head = load(write(tmp_path, {"model": CONFIG} | top, renamed(eagle_tensors(), EAGLE_NAMES)))
    check(head, replace(SPEC, rms_norm_eps=1e-3), eagle_tensors(), "vllm-eagle1")


def test_eagle31_norms_and_switches(tmp_path):
    extra = {f"fc_norm.{i}.weight": torch.full((H,), float(i)) for i in range(3)}
    extra["input_norm.weight"] = torch.ones(3 * H)
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | t2d() | extra
    config = EAGLE3_CONFIG | {"norm_output": True, "norm_before_residual": True}
    spec = replace(SPEC3, norm_output=True, norm_before_residual=True, fc_norm=True, norm_before_fc=True)
    check(load(write(tmp_path / "a", config, tensors)), spec, eagle3_tensors() | extra, "official")

    message = refusal(eagle3_folder(tmp_path / "b", fc_norm=True, norm_before_fc=True))
    assert "missing: fc_norm.0.weight, fc_norm.1.weight, fc_norm.2.weight, input_norm.weight;" in message


def test_narrow_head_needs_target_hidden_size_and_its_own_embedding(tmp_path):
    target = replace(TARGET, hidden_size=12)
    wide = {"fc.weight": torch.ones(H, 36)}
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | t2d() | wide
    own = {"embed_tokens.weight": torch.ones(V, H)}
    config = EAGLE3_CONFIG | {"target_hidden_size": 12}
    head = load(write(tmp_path / "a", config, tensors | own), target)
    spec = replace(SPEC3, target_hidden_size=12, own_embedding=True)
    check(head, spec, eagle3_tensors() | wide | own, "official")
    assert "missing: embed_tokens.weight;" in refusal(write(tmp_path / "b", config, tensors), target)
    message = refusal(write(tmp_path / "c", EAGLE3_CONFIG, tensors | own), target)
    assert "hidden size 8, but tiny has hidden size 12: the head belongs to another target" in message


def test_full_draft_vocabulary_with_and_without_maps(tmp_path):
    tensors = renamed(eagle3_tensors(), EAGLE3_NAMES) | {"lm_head.weight": torch.ones(V, H)}
    del tensors["d2t"]
    config = CONFIG | {"draft_vocab_size": None}
    head = load(write(tmp_path / "a", config, tensors))
    assert head.spec.draft_vocab_size == V
    assert "d2t" not in head.tensors
    maps = {"d2t": torch.zeros(V, dtype=torch.int32), "t2d": torch.ones(V, dtype=torch.bool)}
    head = load(write(tmp_path / "b", config, tensors | maps))
    assert torch.equal(head.tensors["d2t"], torch.zeros(V, dtype=torch.int64))
    assert head.tensors["d2t"].dtype == torch.int64
    assert "t2d" not in head.tensors


def test_safetensors_is_preferred_and_the_choice_is_told(tmp_path):
    eagle3_folder(tmp_path, "safetensors")
    write(tmp_path, None, renamed(eagle_tensors(), EAGLE_NAMES), "bin")
    head = load(tmp_path)
    check(head, SPEC3, eagle3_tensors(), "official")
    assert head.warnings == ("read model.safetensors, ignored pytorch_model.bin beside it",)


def test_sha256_covers_the_weight_files_in_name_order(tmp_path):
    one = load(eagle3_folder(tmp_path / "one"))
    assert one.sha256 == hashlib.sha256((tmp_path / "one/model.safetensors").read_bytes()).hexdigest()
    shards = load(eagle3_folder(tmp_path / "two", "sharded-bin"))
    parts = [file.read_bytes() for file in sorted((tmp_path / "two").glob("*.bin"))]
    assert shards.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.parametrize("kind", ["eagle2", "eagle3"])
def test_starter_heads(kind):
    target = TargetShape("smollm2-135m", 576, 49152, 30)
    head = load(ROOT / "heads" / f"smollm2-135m-{kind}", target)
    spec = HeadSpec(
        kind="eagle",
        hidden_size=576,
        target_hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        draft_vocab_size=49152,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        rope_factor=1.0,
        max_position_embeddings=2048,
    )
    if kind == "eagle3":
        spec = replace(spec, kind="eagle3", draft_vocab_size=8192, feature_layers=(2, 15, 27))
    assert replace(head.spec, origins={}) == spec
    assert head.warnings == ()
    assert sum(tensor.numel() for tensor in head.tensors.values() if tensor.is_floating_point()) == (
        9_808_128 if kind == "eagle3" else 4_203_072
    )


VECTOR_HEADS = {
    "eagle3-llama-good": (1e4, False, False),
    "eagle3-llama-random": (5e5, False, False),
    "eagle3-qwen3-good": (1e6, False, False),
    "eagle2-llama-good": (1e4, True, False),
    "eagle2-llama-random": (1e4, False, False),
    "eagle2-qwen3-good": (1e6, True, True),
    "eagle2-llama-saturated": (1e4, False, False),
}


@pytest.mark.parametrize("name", VECTOR_HEADS)
def test_heads_of_the_differential_vectors(name):
    vectors = SHARED / "vectors" / "eagle"
    if not vectors.is_dir():
        pytest.skip("no EAGLE differential vectors (set TALON_BENCH_SHARED)")
    kind, family, _ = name.split("-")
    config = json.loads((vectors / "targets" / f"{family}-tiny" / "config.json").read_text())
    target = TargetShape(family, config["hidden_size"], config["vocab_size"], config["num_hidden_layers"])
    head = load(vectors / "heads" / name, target)
    assert head.spec.kind == {"eagle2": "eagle", "eagle3": "eagle3"}[kind]
    assert (head.spec.rope_theta, head.spec.fc_bias, head.spec.attention_bias) == VECTOR_HEADS[name]
    assert head.spec.feature_layers == ((2, 4, 5) if kind == "eagle3" else ())
    assert head.spec.num_kv_heads == (4 if name == "eagle2-llama-good" else 2)
    assert ("d2t" in head.tensors) == (kind == "eagle3")
