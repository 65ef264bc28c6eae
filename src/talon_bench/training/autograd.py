"""Forward and backward passes written out where autograd would keep or touch more memory than the arithmetic needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

ROWS = 256
"""Rows of logits worked on at once: 8 MB at a draft vocabulary of 8,192, which stays in the processor's caches."""


@dataclass(frozen=True)
class Block:
    """Queries of one sequence, and the positions of the context that they may see."""

    rows: slice
    """Of the queries."""
    context: slice
    """Of the flat positions: from the sequence's first to the last that any of the queries sees."""
    mask: Tensor
    """Additive [queries x group, context]; the `group` query heads of one key/value head lie side by side."""


class RMSNorm(Function):
    """x / rms(x) * weight over the last dimension of x [n, width]."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=_wide(x))
        inverse = (norm.square_() / x.shape[-1] + eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        product = (grad * x).to(weight.dtype)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            along = (product @ weight)[:, None] * inverse.pow(3) / x.shape[-1]
            grad_x = (grad * weight).mul_(inverse).addcmul_(x, along, value=-1).to(x.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = inverse[:, 0] @ product
        return grad_x, grad_weight, None


class ChainAttention(Function):
    """Attention of a training-time test: each query sees its context and the keys of its own drafted chain.

    query [rows, heads, d]; keys, values [positions, kv_heads, d] of the first step, read as `blocks` say; then the keys
    and values [rows, kv_heads, d] of every later step so far, of which a query sees its own row. Returns [rows, heads, d].
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, query: Tensor, keys: Tensor, values: Tensor, blocks: Sequence[Block], *chain: Tensor
    ) -> Tensor:
        chain_keys, chain_values = chain[::2], chain[1::2]
        scale = query.shape[-1] ** -0.5
        grouped = query.unflatten(1, (keys.shape[1], -1))  # [rows, kv_heads, group, d]
        out = torch.empty_like(grouped)
        weights = []
        for block in blocks:
            asked = _stack(grouped[block.rows])
            seen = block.mask.shape[1]
            scores = asked.new_empty(*asked.shape[:2], seen + len(chain_keys))
            torch.baddbmm(block.mask, asked, keys[block.context].permute(1, 2, 0), alpha=scale, out=scores[..., :seen])
            for place, own in enumerate(chain_keys, seen):
                scores[..., place] = _stack((grouped[block.rows] * own[block.rows, :, None]).sum(-1, keepdim=True))[
                    ..., 0
                ].mul_(scale)
            weight = scores.softmax(-1)
            found = _unstack(torch.bmm(weight[..., :seen], values[block.context].transpose(0, 1)), grouped)
            for place, own in enumerate(chain_values, seen):
                found = found + _unstack(weight[..., place : place + 1], grouped) * own[block.rows, :, None]
            out[block.rows] = found
            weights.append(weight)
        ctx.blocks = blocks
        ctx.save_for_backward(query, keys, values, out, *chain, *weights)
        return out.flatten(1, 2)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, out, *rest = ctx.saved_tensors
        chain, weights = rest[: -len(ctx.blocks)], rest[-len(ctx.blocks) :]
        chain_keys, chain_values = chain[::2], chain[1::2]
        scale = query.shape[-1] ** -0.5
        grouped = query.unflatten(1, (keys.shape[1], -1))
        grad = grad.unflatten(1, (keys.shape[1], -1))
        spread = (grad * out).sum(-1, keepdim=True)  # what the softmax takes off each weight's own gradient
        grad_query = torch.empty_like(grouped)
        grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
        grad_chain = [torch.empty_like(tensor) for tensor in chain]
        for block, weight in zip(ctx.blocks, weights, strict=True):
            asked, wanted = _stack(grouped[block.rows]), _stack(grad[block.rows])
            seen = block.mask.shape[1]
            weight_context = weight[..., :seen]
            grad_values[block.context] += torch.bmm(weight_context.mT, wanted).transpose(0, 1)
            scores = torch.bmm(wanted, values[block.context].permute(1, 2, 0))
            scores = scores.sub_(_stack(spread[block.rows])).mul_(weight_context).mul_(scale)
            grad_keys[block.context] += torch.bmm(scores.mT, asked).transpose(0, 1)
            found = _unstack(torch.bmm(scores, keys[block.context].transpose(0, 1)), grouped)
            for place, (own_key, own_value) in enumerate(zip(chain_keys, chain_values, strict=True)):
                share = _unstack(weight[..., seen + place : seen + place + 1], grouped)
                along = (grad[block.rows] * own_value[block.rows, :, None]).sum(-1, keepdim=True)
                score = (along - spread[block.rows]) * share * scale
                found = found + score * own_key[block.rows, :, None]
                grad_chain[2 * place][block.rows] = (score * grouped[block.rows]).sum(2)
                grad_chain[2 * place + 1][block.rows] = (share * grad[block.rows]).sum(2)
            grad_query[block.rows] = found
        return grad_query.flatten(1, 2), grad_keys, grad_values, None, *grad_chain


def _stack(x: Tensor) -> Tensor:
    """[rows, kv_heads, group, d] as one product's operand [kv_heads, rows * group, d]."""
    return x.transpose(0, 1).flatten(1, 2)


def _unstack(x: Tensor, like: Tensor) -> Tensor:
    """The way back from `_stack`; `like` [.., kv_heads, group, ..] tells the group."""
    return x.unflatten(1, (-1, like.shape[2])).transpose(0, 1)


class SoftCrossEntropy(Function):
    """Weighted sum of cross-entropies of rows against sparse teachers, with the gradients found on the way.

    states [n, hidden]; matrix [columns, hidden] of the output projection; bias [columns] or None, a constant added to the
    logits; teacher_columns, teacher_probs [n, k], each row's probabilities adding up to 1; weights [n]. The logits of
    `ROWS` rows at a time exist, once.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        states: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        teacher_columns: Tensor,
        teacher_probs: Tensor,
        weights: Tensor,
    ) -> Tensor:
        wants_states, wants_matrix = ctx.needs_input_grad[:2]
        grad_states = torch.empty_like(states) if wants_states else None
        grad_matrix = torch.zeros_like(matrix) if wants_matrix else None
        used = matrix.to(states.dtype)
        loss = weights.new_zeros(())
        for start in range(0, states.shape[0], ROWS):
            rows = slice(start, start + ROWS)
            logits = torch.mm(states[rows], used.T).to(_wide(states))
            if bias is not None:
                logits += bias
            log_probs = logits.log_softmax(-1)
            found = log_probs.gather(1, teacher_columns[rows])
            loss -= (found * teacher_probs[rows]).sum(-1) @ weights[rows]
            if not wants_states:
                continue
            residual = torch.exp(log_probs, out=logits)
            residual.scatter_add_(1, teacher_columns[rows], -teacher_probs[rows])
            residual, weight = residual.to(states.dtype), weights[rows, None].to(states.dtype)
            grad_states[rows] = torch.mm(residual, used).mul_(weight)
            if not wants_matrix:
                continue
            if states.dtype is matrix.dtype:
                grad_matrix.addmm_(residual.T, states[rows] * weight)
            else:
                grad_matrix += torch.mm(residual.T, states[rows] * weight)
        ctx.save_for_backward(grad_states, grad_matrix)
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_matrix = ctx.saved_tensors
        scaled = [found * grad if found is not None else None for found in (grad_states, grad_matrix)]
        return (*scaled, None, None, None, None)


def _wide(x: Tensor) -> torch.dtype:
    """The dtype for sums over x: float32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)
