"""The fused kernels as operators that torch knows: shapes, gradients, FLOPs.

With it torch.compile, fake tensors, FLOP counters and activation checkpointing see through them.
Triton is imported only when an operator runs.

Tables hold weights, for softmax, too: their logarithms are taken inside. Besides the result an
operator returns what its backward pass needs: a number a row, and the flat table (`places.py`).

Shapes: T tables of N entries, S samples that share a table, L tokens, M features, D channels of v.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..paths.recompute import differentiable_once
from .places import flat_entries

_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor table, Tensor border, Tensor? bias, "
    "Tensor? place_q, Tensor? place_k"
)
_OPTIONS = (
    "str kind, int[] grid, int prefix, int span, str features, bool nonnegative, float floor, "
    "float scale, int budget"
)
_LIBRARY = torch.library.Library("vit_rpe", "FRAGMENT")
_LIBRARY.define(f"fused_attention({_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(
    "fused_attention_backward(Tensor grad, Tensor out, Tensor statistic, Tensor flat, "
    f"{_TENSORS}, {_OPTIONS}, bool of_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_NUM_TENSORS = 8


def tokens_first(x: Tensor) -> Tensor:
    """An empty (T, S, L, C) tensor like x, stored as (S, L, T, C): what a model reads next."""
    tables, samples, length, channels = x.shape
    return x.new_empty(samples, length, tables, channels).permute(2, 0, 1, 3)


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    from .launch import Inputs, Launcher, Options

    tensors, options = arguments[:_NUM_TENSORS], arguments[_NUM_TENSORS:]
    with torch.cuda.device_of(tensors[0]):  # Triton starts kernels on the current device
        return Launcher(Inputs(*tensors), Options(*options)).forward()


def _backward(
    grad: Tensor, out: Tensor, statistic: Tensor, flat: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    from .launch import Inputs, Launcher, Options

    *rest, of_mask = arguments
    tensors, options = rest[:_NUM_TENSORS], rest[_NUM_TENSORS:]
    with torch.cuda.device_of(grad):
        launcher = Launcher(Inputs(*tensors), Options(*options), flat if flat.numel() else None)
        found = launcher.backward(grad, out, statistic, of_mask)
    return tuple(statistic.new_empty(0) if x is None else x for x in found)


def _forward_shapes(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, border: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    kind, grid, prefix = rest[_NUM_TENSORS - 5 :][:3]
    entries = flat_entries(grid, prefix)
    shape = (table.shape[0], entries) if kind == "softmax" or prefix else (0,)
    statistic = v.new_empty(v.shape[:-1], dtype=torch.float32)
    return tokens_first(v), statistic, table.new_empty(shape)


def _backward_shapes(
    grad: Tensor,
    out: Tensor,
    statistic: Tensor,
    flat: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    border: Tensor,
    bias: Tensor | None,
    *options: Any,
) -> tuple[Tensor, ...]:
    nothing = statistic.new_empty(0)
    of_bias = nothing if bias is None else statistic.new_empty(statistic.shape)
    masks = [statistic.new_empty(x.shape if options[-1] else 0) for x in (table, border)]
    return *map(tokens_first, (q, k, v)), of_bias, *masks


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_NUM_TENSORS], *output)
    ctx.options = inputs[_NUM_TENSORS:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


@partial(differentiable_once, instead="VIT_RPE_TRITON=0 in the environment")
def _gradients(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    rest = [None] * (2 + len(ctx.options))
    if grad is None:
        return *[None] * (_NUM_TENSORS - 2), *rest
    *tensors, out, statistic, flat = ctx.saved_tensors
    of_mask = any(ctx.needs_input_grad[3:5])
    *tokens, bias, table, border = torch.ops.vit_rpe.fused_attention_backward(
        grad, out, statistic, flat, *tensors, *ctx.options, of_mask
    )
    masks = (table, border) if of_mask else (None, None)
    return *tokens, *masks, None if tensors[5] is None else bias, *rest


def _flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """q k^T and A v."""
    *items, length, m = q
    return 2 * prod(items) * length**2 * (m + v[-1])


def _backward_flops(*shapes: Any, **__: Any) -> int:
    """Count the products of the kernels: q k^T and g v^T are made again in each of them."""
    q, _, v, *rest = shapes[4:]
    *items, length, m = q
    softmax, of_mask = rest[_NUM_TENSORS - 3] == "softmax", rest[-1]
    products = (3 + softmax + of_mask) * m + (3 + of_mask) * v[-1]
    return 2 * prod(items) * length**2 * products


for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("fused_attention", _forward, _device)
    _LIBRARY.impl("fused_attention_backward", _backward, _device)
torch.library.register_fake("vit_rpe::fused_attention", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("vit_rpe::fused_attention_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd(
    "vit_rpe::fused_attention", _gradients, setup_context=_keep, lib=_LIBRARY
)
register_flop_formula(torch.ops.vit_rpe.fused_attention)(_flops)
register_flop_formula(torch.ops.vit_rpe.fused_attention_backward)(_backward_flops)
