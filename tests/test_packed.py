"""Packed linear layers: the same product, or the plain one where the private operators are not to be had."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talon_bench import packed
from talon_bench.packed import Linear

needs_mkldnn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


def matrix(dtype: torch.dtype = torch.float32, out: int = 24, width: int = 40) -> torch.Tensor:
    return torch.randn(out, width, generator=torch.Generator().manual_seed(0)).to(dtype)


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@needs_mkldnn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40)])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_equals_plain_for_every_shape_of_input(dtype, shape, biased):
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 kernels")
    weight, x = matrix(dtype), inputs(shape, dtype)
    bias = inputs((24,), dtype) if biased else None
    linear = Linear(weight, bias, pack=True)
    assert linear.is_packed
    tolerance = {"rtol": 0.02, "atol": 0.05} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(linear(x), F.linear(x, weight, bias), **tolerance)


@pytest.mark.parametrize("biased", [False, True])
def test_unpacked_is_the_plain_product_itself(biased):
    weight, x = matrix(), inputs((5, 40))
    bias = inputs((24,)) if biased else None
    linear = Linear(weight, bias)
    assert not linear.is_packed
    assert torch.equal(linear(x), F.linear(x, weight, bias))


def test_the_weight_takes_part_in_no_gradient():
    weight = torch.nn.Parameter(matrix())
    assert not Linear(weight)(inputs((2, 40))).requires_grad


def failing(error: type[Exception]):
    def operator(*_: object) -> None:
        raise error("not in this build")

    return operator


@needs_mkldnn
@pytest.mark.parametrize("error", [AttributeError, RuntimeError, NotImplementedError])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("_reorder_linear_weight", torch.float32),
        ("_reorder_linear_weight", torch.bfloat16),
        ("_linear_pointwise", torch.float32),
        ("_linear_pointwise", torch.bfloat16),
        ("_is_mkldnn_bf16_supported", torch.bfloat16),
    ],
)
def test_an_operator_that_is_gone_leaves_the_plain_product(name, dtype, error, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, name, failing(error))
    linear = Linear(matrix(dtype), pack=True)
    x = inputs((3, 40), dtype)
    assert not linear.is_packed
    assert torch.equal(linear(x), F.linear(x, matrix(dtype)))


@needs_mkldnn
@pytest.mark.parametrize("change", [lambda y: y * 1.001, lambda y: y.roll(1, -1), lambda y: y * float("nan")])
def test_a_packed_product_that_differs_is_not_used(change, monkeypatch):
    right = packed._multiply
    monkeypatch.setattr(packed, "_multiply", lambda *given: change(right(*given)))
    linear = Linear(matrix(), pack=True)
    assert not linear.is_packed
    assert torch.equal(linear(inputs((3, 40))), F.linear(inputs((3, 40)), matrix()))


def test_without_onednn_nothing_is_packed(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not Linear(matrix(), pack=True).is_packed


@needs_mkldnn
def test_without_bfloat16_kernels_only_float32_is_packed(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert not Linear(matrix(torch.bfloat16), pack=True).is_packed
    assert Linear(matrix(), pack=True).is_packed


@needs_mkldnn
def test_large_and_small_weights_pass_the_check():
    for scale in (1e-6, 1.0, 1e6):
        assert Linear(matrix() * scale, pack=True).is_packed
    assert Linear(matrix(out=700, width=900), pack=True).is_packed
