"""The fused CPU engine: the stock model's numbers, or the stock model's own modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from stock_reference import CLOSE, PARENTS, PROMPT, assert_verifies, from_scratch, path_to, tree_of
from talon_bench import fused
from talon_bench.target import Target
from toys import ARCHITECTURES

VARIANTS = [
    *((architecture, {}) for architecture in ARCHITECTURES),
    ("llama", {"attention_bias": True}),
    ("qwen3", {"attention_bias": True}),
    ("mistral", {"sliding_window": 64}),
]


def modules(model: nn.Module) -> list[tuple[str, int]]:
    """Every sub-module by name and identity."""
    return [(name, id(module)) for name, module in model.named_modules()]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("architecture", "overrides"), VARIANTS)
def test_the_fused_engine_equals_the_stock_model(architecture, overrides, pack, stock):
    model = stock(architecture, **overrides)
    target = Target.wrap(stock(architecture, **overrides), architecture, fuse_layers=True, pack=pack)
    assert target.fused
    assert target.packed is pack
    target.tap((2, 4, 5))
    target.allocate(64)
    expected, states = from_scratch(model, PROMPT)
    torch.testing.assert_close(target.prefill(PROMPT), expected[-1], **CLOSE)
    rows = torch.arange(len(PROMPT))
    entering = torch.cat([states[layer] for layer in (2, 4, 5)], dim=-1)
    torch.testing.assert_close(target.features((2, 4, 5), rows), entering, **CLOSE)
    tree = tree_of(PARENTS)
    assert_verifies(target, model, PROMPT, tree)
    path = path_to(PARENTS, 10)
    target.commit(path)
    assert_verifies(target, model, PROMPT + tree.tokens[path].tolist(), tree_of([-1, 0], seed=1))


def test_all_layers_are_swapped(stock):
    model = stock("qwen3")
    assert fused.fuse(model, pack=False)
    assert all(isinstance(layer, fused.Layer) for layer in model.model.layers)
    assert isinstance(model.model.norm, fused.RMSNorm)


def must_not_run(_: nn.Module) -> None:
    raise AssertionError("the structure alone should have told")


def with_mlp_bias(model: nn.Module) -> None:
    down = model.model.layers[2].mlp.down_proj
    down.bias = nn.Parameter(torch.ones(down.out_features))


def with_one_bias(model: nn.Module) -> None:
    q_proj = model.model.layers[2].self_attn.q_proj
    q_proj.bias = nn.Parameter(torch.ones(q_proj.out_features))


def with_gelu(model: nn.Module) -> None:
    model.model.layers[2].mlp.act_fn = nn.GELU()


def with_another_linear(model: nn.Module) -> None:
    class Quantised(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).round()

    model.model.layers[2].mlp.up_proj.__class__ = Quantised


def with_layer_norm(model: nn.Module) -> None:
    model.model.layers[2].input_layernorm = nn.LayerNorm(32)


def with_final_layer_norm(model: nn.Module) -> None:
    model.model.norm = nn.LayerNorm(32)


def with_another_module(model: nn.Module) -> None:
    model.model.layers[2].pre_feedforward_layernorm = nn.Identity()


@pytest.mark.parametrize(
    "change",
    [
        with_mlp_bias,
        with_one_bias,
        with_gelu,
        with_another_linear,
        with_layer_norm,
        with_final_layer_norm,
        with_another_module,
    ],
)
def test_one_unknown_layer_leaves_the_whole_model_stock(change, stock, monkeypatch):
    """Seen by its structure: no layer is swapped first and compared then."""
    monkeypatch.setattr(fused, "_probe", must_not_run)
    model = stock("llama")
    change(model)
    expected, _ = from_scratch(model, PROMPT)
    before = modules(model)
    target = Target.wrap(model, "llama", fuse_layers=True, pack=True)
    assert (target.fused, target.packed) == (False, False)
    assert modules(model) == before
    target.allocate(len(PROMPT))
    torch.testing.assert_close(target.prefill(PROMPT), expected[-1], **CLOSE)


def test_sliding_layers_are_left_stock(stock):
    sliding = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 4}
    assert not Target.wrap(stock("qwen2", **sliding), "qwen2", fuse_layers=True).fused


@pytest.mark.parametrize("name", ["Attention", "Layer", "MLP", "RMSNorm", "SignedRotary"])
def test_a_fused_layer_that_computes_something_else_is_taken_out_again(name, stock, monkeypatch):
    right = getattr(fused, name)

    class Wrong(right):
        def forward(self, *args: object, **kwargs: object) -> object:
            out = super().forward(*args, **kwargs)
            return out * 1.01 if isinstance(out, torch.Tensor) else (out[0] * 1.01, out[1])

    monkeypatch.setattr(fused, name, Wrong)
    model = stock("llama")
    expected, _ = from_scratch(model, PROMPT)
    before = modules(model)
    target = Target.wrap(model, "llama", fuse_layers=True)
    assert not target.fused
    assert modules(model) == before
    target.allocate(len(PROMPT))
    torch.testing.assert_close(target.prefill(PROMPT), expected[-1], **CLOSE)


def test_bfloat16_layers_with_a_float32_projection(stock):
    model = stock("llama", dtype=torch.bfloat16)
    expected, _ = from_scratch(stock("llama"), PROMPT)
    target = Target.wrap(stock("llama", dtype=torch.bfloat16), "llama", fuse_layers=True, pack=True)
    target.allocate(len(PROMPT))
    logits = target.prefill(PROMPT)
    final = target.features((), torch.tensor([len(PROMPT) - 1]))
    assert (target.fused, target.dtype, final.dtype) == (True, torch.bfloat16, torch.bfloat16)
    exact = final.double() @ model.lm_head.weight.double().T
    torch.testing.assert_close(logits.double(), exact[0], rtol=1e-5, atol=1e-5)
    assert not torch.equal(logits, logits.bfloat16().float())
    assert (logits - expected[-1]).norm() < 0.1 * expected[-1].norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype):
    stock_norm = LlamaRMSNorm(48, eps=1e-3).to(dtype)
    generator = torch.Generator().manual_seed(0)
    stock_norm.weight.data = torch.randn(48, generator=generator).to(dtype)
    for scale in (1e-3, 1.0, 300.0):
        x = (torch.randn(2, 5, 48, generator=generator) * scale).to(dtype)
        found = fused.RMSNorm(stock_norm.weight, 1e-3)(x)
        assert found.dtype is dtype
        tolerance = {"rtol": 0.02, "atol": 0.02} if dtype is torch.bfloat16 else CLOSE
        torch.testing.assert_close(found, stock_norm(x), **tolerance)


def test_rotation_equals_that_of_the_stock_models(stock):
    rotary = stock("llama").model.rotary_emb
    x = torch.randn(1, 6, 4, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 7, 7, 100]])
    expected, _ = apply_rotary_pos_emb(x.transpose(1, 2), x.transpose(1, 2), *rotary(x, positions))
    found = fused.rotate(x, *fused.SignedRotary(rotary)(x, positions))
    torch.testing.assert_close(found.transpose(1, 2), expected, **CLOSE)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("form", ["none", "shared", "repeated"])
def test_grouped_attention_equals_softmax_per_head(heads, kv_heads, n, form):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, heads, n, 8, generator=generator)
    keys, values = torch.randn(2, 1, kv_heads, 9, 8, generator=generator)
    hidden = torch.rand(n, 9, generator=generator) < 0.4
    hidden[:, 0] = False
    bias = torch.zeros(n, 9).masked_fill(hidden, float("-inf")) if form != "none" else torch.zeros(n, 9)
    mask = {"none": None, "shared": bias, "repeated": bias.repeat(heads // kv_heads, 1)}[form]
    found = fused.attend(query, keys, values, None if mask is None else mask[None, None], 0.3)
    for head in range(heads):
        group = head // (heads // kv_heads)
        weights = (query[0, head] @ keys[0, group].T * 0.3 + bias).softmax(-1)
        torch.testing.assert_close(found[0, :, head * 8 : head * 8 + 8], weights @ values[0, group], **CLOSE)


@pytest.mark.parametrize(
    ("dtype", "deep_model"), [(torch.float32, 3.3e-6), (torch.float16, 5.3e-3), (torch.bfloat16, 3.5e-2)]
)
def test_the_tolerance_lies_between_a_deep_models_rounding_and_a_wrong_model(dtype, deep_model):
    """`deep_model`: the relative error of the fused SmolLM2-135M, 30 layers, against its stock twin."""
    assert 4 * deep_model < fused.rounding(dtype) < 0.2
