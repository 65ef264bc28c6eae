"""Linear layers whose weight is stored in the layout that the CPU's matrix kernels want (oneDNN prepacking).

The two operators are private to torch (its compiler uses them); whether they are there and right is checked on each use,
and a plain matrix product stands in where they are not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """y = x W^T + b with weight [out, in], packed where `pack` is asked for and possible."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = False) -> None:
        super().__init__()
        weight = weight.detach().contiguous()
        self._packed = _pack(weight) if pack else None
        if self._packed is not None and not _agrees(weight, self._packed):
            self._packed = None
        self._weight = weight if self._packed is None else None
        self._bias = bias.detach() if bias is not None else None

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None:
            return F.linear(x, self._weight, self._bias)
        return _multiply(x, self._packed, self._bias)


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _pack(weight: Tensor) -> Tensor | None:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        if weight.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return None
        return torch.ops.mkldnn._reorder_linear_weight(weight, None)
    except (AttributeError, RuntimeError):
        return None


def _agrees(weight: Tensor, packed: Tensor) -> bool:
    """Whether the packed product equals F.linear up to the rounding of a sum of `in` terms in the weight's dtype."""
    probe = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=torch.float32).view(3, -1).to(weight.dtype)
    expected = F.linear(probe, weight).float()
    try:
        found = _multiply(probe, packed, None).float()
    except (AttributeError, RuntimeError):
        return False
    scale = F.linear(probe.float().abs(), weight.float().abs())
    return bool(((found - expected).abs() <= 4 * torch.finfo(weight.dtype).eps * scale + 1e-6).all())
