"""Shapes, gradients and FLOPs of the C++ operators, for torch.

With it torch.compile, fake tensors and FLOP counters see through them.

Shapes: T tables of R terms, S samples that share a table, L tokens, M features, D value channels, C
value columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..paths.recompute import differentiable_once
from .block_softmax import softmax_in_blocks


@cache
def register_operators() -> None:
    """Tell torch about `explicit_grid` and the others, once."""
    ops = torch.ops.vit_rpe
    library = torch.library
    library.register_fake("vit_rpe::explicit_grid", _explicit_shapes)
    library.register_fake("vit_rpe::explicit_grid_backward", _explicit_backward_shapes)
    library.register_fake("vit_rpe::scan_grid", lambda q, k, v, *_: _like(v))
    library.register_fake("vit_rpe::scan_grid_backward", lambda _, *x: tuple(map(_like, x[:5])))
    library.register_fake("vit_rpe::softmax_grid", _softmax_shapes)
    library.register_fake("vit_rpe::softmax_grid_backward", _softmax_backward_shapes)
    library.register_autograd(
        "vit_rpe::explicit_grid", _explicit_backward, setup_context=_keep_explicit
    )
    library.register_autograd("vit_rpe::scan_grid", _scan_backward, setup_context=_keep_scan)
    library.register_autograd(
        "vit_rpe::softmax_grid", _softmax_backward, setup_context=_keep_softmax
    )
    library.register_fake("vit_rpe::sparse_gram", _gram_shapes)
    library.register_fake("vit_rpe::sparse_gram_backward", _gram_backward_shapes)
    library.register_autograd("vit_rpe::sparse_gram", _gram_backward, setup_context=_keep_gram)
    library.register_fake("vit_rpe::softmax_blocks", _block_shapes)
    library.register_fake("vit_rpe::softmax_blocks_backward", _block_backward_shapes)
    library.register_autograd("vit_rpe::softmax_blocks", _block_backward, setup_context=_keep_block)
    register_flop_formula(ops.softmax_blocks)(_block_flops)
    register_flop_formula(ops.softmax_blocks_backward)(_block_backward_flops)
    register_flop_formula(ops.sparse_gram)(_gram_flops)
    register_flop_formula(ops.sparse_gram_backward)(
        lambda grad, total, *shapes, **options: 2 * _gram_flops(*shapes[:3], *shapes[4:])
    )
    register_flop_formula(ops.explicit_grid)(_explicit_flops)
    register_flop_formula(ops.explicit_grid_backward)(_explicit_backward_flops)
    register_flop_formula(ops.scan_grid)(_scan_flops)
    register_flop_formula(ops.scan_grid_backward)(_scan_backward_flops)
    register_flop_formula(ops.softmax_grid)(_explicit_flops)
    register_flop_formula(ops.softmax_grid_backward)(
        lambda grad, *shapes, **options: _explicit_backward_flops(*shapes, **options)
    )


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


# --- explicit_grid(q, k, v, table, border, prefix, slices, cells) -> sums, total, absolute ------


def _explicit_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    row = (*v.shape[:-1], 1)
    return _like(v), v.new_empty(row), v.new_empty(row)


def _explicit_backward_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    result: Tensor | None,
    denominator: Tensor | None,
    table: Tensor,
    border: Tensor,
    *_: int,
) -> tuple[Tensor, ...]:
    return tuple(map(_like, (q, k, v, table, border)))


def _keep_explicit(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, prefix, slices, cells = inputs
    ctx.save_for_backward(*tensors)
    ctx.sizes = prefix, slices, cells
    ctx.mark_non_differentiable(output[2])


@differentiable_once
def _explicit_backward(ctx: Any, sums: Tensor, total: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, *mask = ctx.saved_tensors
    grad = torch.cat([sums, total], -1)
    gradients = torch.ops.vit_rpe.explicit_grid_backward(
        q, k, v, grad, None, None, *mask, *ctx.sizes
    )
    return *gradients, None, None, None


def _explicit_flops(
    q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any
) -> int:
    """q k^T and A v."""
    *items, length, m = q
    return 2 * prod(items) * length**2 * (m + v[-1])


def _explicit_backward_flops(
    q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any
) -> int:
    """q k^T again, and dA, dq, dk, dv."""
    *items, length, m = q
    return 2 * prod(items) * length**2 * (3 * m + 2 * v[-1])


# --- scan_grid(q, k, v, rates, weights, grid, blocks, one_sided) -> sums ------------------------


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, grid, blocks, one_sided = inputs
    ctx.save_for_backward(*tensors)
    ctx.shape = grid, blocks, one_sided


@differentiable_once
def _scan_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    gradients = torch.ops.vit_rpe.scan_grid_backward(grad, *ctx.saved_tensors, *ctx.shape)
    return *gradients, None, None, None


def _scan_flops(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    rates: Sequence[int],
    weights: Sequence[int],
    grid: Sequence[int],
    blocks: Sequence[int],
    one_sided: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """For each cut, way and term: what tokens send and read, and states that are spread."""
    *items, length, m = q
    flops = 0
    for axis, block in enumerate(blocks):
        ways = weights[-1] * (1 if axis in one_sided else 2)
        states = -(-length // block) * (2 * (len(grid) - 1) + 1)
        flops += ways * prod(items) * m * v[-1] * (4 * length + 2 * states)
    return flops


def _scan_backward_flops(grad: Sequence[int], *shapes: Any, **options: Any) -> int:
    """States are made again; each product has two gradients."""
    return 3 * _scan_flops(*shapes, **options)


# --- softmax_grid(q, k, v, table, border, bias, grid, prefix, scale) -> result, lse -------------


def _tokens_first(x: Tensor) -> Tensor:
    """An empty (T, S, L, C) tensor like x, stored as (S, L, T, C)."""
    tables, samples, length, channels = x.shape
    return x.new_empty(samples, length, tables, channels).permute(2, 0, 1, 3)


def _softmax_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _tokens_first(v), v.new_empty(v.shape[:-1])


def _softmax_backward_shapes(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    border: Tensor,
    bias: Tensor | None,
    *_: Any,
) -> tuple[Tensor, ...]:
    tokens = map(_tokens_first, (q, k, v))
    return *tokens, _like(table), _like(border), q.new_empty(0) if bias is None else _like(bias)


def _keep_softmax(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, grid, prefix, scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.options = grid, prefix, scale
    ctx.mark_non_differentiable(output[1])


@partial(differentiable_once, instead="VIT_RPE_NATIVE=0 in the environment")
def _softmax_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    *gradients, bias = torch.ops.vit_rpe.softmax_grid_backward(grad, *tensors, *ctx.options)
    return *gradients, None if tensors[5] is None else bias, None, None, None


# --- softmax_blocks(q, k, v, bias, blocks, scale) -> result, lse -----------------------------


def _heads_inside(x: Tensor) -> Tensor:
    """An empty (H, L, C) tensor like x, stored as (L, H, C)."""
    heads, length, channels = x.shape
    return x.new_empty(length, heads, channels).transpose(0, 1)


def _block_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _heads_inside(v), v.new_empty(v.shape[:-1])


def _block_backward_shapes(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    of_bias = _like(bias) if rest[-1] else bias.new_empty(0)
    return *map(_heads_inside, (q, k, v)), of_bias


def _keep_block(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.scale = scale
    ctx.mark_non_differentiable(output[1])


def _block_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[:4]
    if torch.is_grad_enabled():  # gradients that have gradients
        q, k, v, bias, blocks = tensors[:5]
        out = softmax_in_blocks(q, k, v, bias, blocks, ctx.scale)
        leaves = [x for x, wanted in zip(tensors, needed, strict=False) if wanted]
        found = iter(torch.autograd.grad(out, leaves, grad, create_graph=True))
        return *(next(found) if wanted else None for wanted in needed), None, None
    *gradients, bias = torch.ops.vit_rpe.softmax_blocks_backward(
        grad, *tensors, ctx.scale, needed[3]
    )
    return *gradients, bias if needed[3] else None, None, None


def _block_flops(
    q: Sequence[int], k: Sequence[int], v: Sequence[int], bias: Sequence[int], *_: Any, **__: Any
) -> int:
    """q k^T and P v inside the blocks, with their padding."""
    return 2 * q[0] * bias[-1] * (q[-1] + v[-1])


def _block_backward_flops(
    grad: Sequence[int],
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    bias: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """q k^T again, and dP, dq, dk, dv."""
    return 2 * q[0] * bias[-1] * (3 * q[-1] + 2 * v[-1])


# --- sparse_gram(q, k, v, starts, columns, values, and transposed, keep) -> sums, total, rows ----


def _gram_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    length, heads, channels = v.shape
    width = 32 // v.element_size()  # numbers in a vector
    row = heads * q.shape[2] * _whole(channels, width) + _whole(heads * q.shape[2], width)
    sums = v.new_empty(length, heads, _whole(channels, width))[..., :channels]
    return sums, v.new_empty(length, heads), v.new_empty(length if rest[-1] else 0, row)


def _whole(size: int, width: int) -> int:
    return -(-size // width) * width


def _gram_backward_shapes(
    grad: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    dv = v.new_empty(*v.shape[:2], _whole(v.shape[2], 32 // v.element_size()))
    return _like(q), _like(k), dv[..., : v.shape[2]]


def _keep_gram(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, *matrix, _ = inputs
    ctx.save_for_backward(q, k, v, output[2], *matrix)
    ctx.mark_non_differentiable(output[2])


@partial(differentiable_once, instead="path='explicit', or VIT_RPE_NATIVE=0 in the environment,")
def _gram_backward(ctx: Any, grad: Tensor, total: Tensor, _: Tensor) -> tuple[Any, ...]:
    gradients = torch.ops.vit_rpe.sparse_gram_backward(grad, total, *ctx.saved_tensors)
    return *gradients, *(None,) * 7


def _gram_flops(
    q: Sequence[int], k: Sequence[int], v: Sequence[int], *matrix: Sequence[int], **_: Any
) -> int:
    """Two products with all columns of all heads."""
    return 2 * 2 * matrix[2][0] * v[1] * q[2] * (v[2] + 1)
