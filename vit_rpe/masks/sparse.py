"""Sparse matrices as masks, with gradients to their values that never form a dense matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base import Mask, as_length, check_columns, check_rows
from .precision import in_function_transform

# Entries are multiplied in slices of about so many numbers, so that (entries x columns) is never
# held.
_SLICE = 1 << 22


class Sparse(Mask):
    """A weighted adjacency matrix as mask (paper, Sec. 3.1). O(edges).

    `M[i, j]` is the sum of the weights of the edges (i, j): `edge_index[0]` holds the queries and
    `edge_index[1]` the keys that they see. `edge_index` is (2, E), `weight` (..., E).
    """

    by_rows = True
    tensor_names = ("edge_index", "weight")

    def __init__(self, edge_index: Tensor, weight: Tensor, length: int):
        if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
            raise ValueError(
                "edge_index must be int64 of shape (2, E), "
                f"got {edge_index.dtype} {tuple(edge_index.shape)}"
            )
        if weight.ndim < 1 or weight.shape[-1] != edge_index.shape[1]:
            raise ValueError(
                f"{edge_index.shape[1]} edges need weights of shape (..., {edge_index.shape[1]}), "
                f"got {tuple(weight.shape)}"
            )
        self.length = as_length(length)
        self.edge_index = edge_index
        self.weight = weight

    def check(self) -> None:
        super().check()
        outside = (self.edge_index < 0) | (self.edge_index >= self.length)
        if outside.any():
            edge = int(outside.any(0).nonzero()[0])
            raise ValueError(
                f"edge {edge} joins {self.edge_index[:, edge].tolist()}, "
                f"but tokens go from 0 to {self.length - 1}"
            )

    @property
    def lead(self) -> torch.Size:
        return self.weight.shape[:-1]

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return sparse_product(self.edge_index[0], self.edge_index[1], self.weight, x, self.length)

    def dense(self) -> Tensor:
        return self.rows(0, self.length)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        query, key = self.edge_index
        inside = ((query >= start) & (query < stop)).nonzero().squeeze(-1)
        place = (query[inside] - start) * self.length + key[inside]
        slab = self.weight.new_zeros(*self.weight.shape[:-1], (stop - start) * self.length)
        return slab.index_add(-1, place, self.weight[..., inside]).unflatten(
            -1, (stop - start, self.length)
        )

    def cost(self, columns: int) -> float:
        return 4.0 * columns * (self.edge_index.shape[1] + self.length)

    def magnitude(self) -> Mask:
        return Sparse(self.edge_index, self.weight.detach().abs(), self.length)


def sparse_product(row: Tensor, column: Tensor, value: Tensor, x: Tensor, num_rows: int) -> Tensor:
    """S x for a sparse S with entries `value` (..., E): (..., N, C) -> (..., num_rows, C)."""
    dtype = torch.promote_types(torch.promote_types(value.dtype, x.dtype), torch.float32)
    if in_function_transform():  # torch.func differentiates no function of our own
        weighed = value.to(dtype)[..., None] * x.to(dtype)[..., column, :]
        zeros = weighed.new_zeros(*weighed.shape[:-2], num_rows, x.shape[-1])
        return zeros.index_add(-2, row, weighed).to(x.dtype)
    return _SparseProduct.apply(row, column, value.to(dtype), x.to(dtype), num_rows).to(x.dtype)


class _SparseProduct(torch.autograd.Function):
    """Gathers, weighs and adds, a slice of the entries at a time, forward and backward.

    torch's own sparse product would allocate a dense matrix for the gradient of the values.
    """

    @staticmethod
    def forward(
        ctx: Any, row: Tensor, column: Tensor, value: Tensor, x: Tensor, num_rows: int
    ) -> Tensor:
        ctx.save_for_backward(row, column, value, x)
        return _gather_and_add(row, column, value, x, num_rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        row, column, value, x = ctx.saved_tensors
        grad_value = grad_x = None
        if ctx.needs_input_grad[2]:
            grad_value = torch.cat(
                [
                    (grad[..., row[s], :] * x[..., column[s], :]).sum(-1)
                    for s in _slices(row, grad, x)
                ],
                -1,
            ).sum_to_size(value.shape)
        if ctx.needs_input_grad[3]:
            grad_x = _gather_and_add(column, row, value, grad, x.shape[-2]).sum_to_size(x.shape)
        return None, None, grad_value, grad_x, None


def _gather_and_add(row: Tensor, column: Tensor, value: Tensor, x: Tensor, num_rows: int) -> Tensor:
    lead = torch.broadcast_shapes(value.shape[:-1], x.shape[:-2])
    result = x.new_zeros(*lead, num_rows, x.shape[-1])
    for s in _slices(row, result):
        result.index_add_(
            -2, row[s], (value[..., s, None] * x[..., column[s], :]).expand(*lead, -1, -1)
        )
    return result


def _slices(entries: Tensor, *columns: Tensor) -> list[slice]:
    lead = torch.broadcast_shapes(*(c.shape[:-2] for c in columns))
    step = max(1, _SLICE // max(1, lead.numel() * columns[0].shape[-1]))
    return [slice(start, start + step) for start in range(0, max(1, entries.shape[0]), step)]
