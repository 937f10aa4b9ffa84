"""Constant sparse matrices, multiplied as CSR: about ten times faster than gather and add.

Shapes: a matrix is (R, N) with E entries; x is (..., N, C), the result (..., R, C).
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .edges import row_starts


class SparseMatrix:
    """A sparse matrix known by its entries, which may be given as often as one likes.

    The pattern is sorted once, for the matrix and its transpose; `product` takes values (..., E)
    that may change from call to call and have gradients.
    """

    def __init__(self, row: Tensor, column: Tensor, shape: tuple[int, int]):
        order = torch.argsort(row * shape[1] + column)
        self.shape = shape
        self.order = order
        self.row, self.column = row[order], column[order]
        self.starts = row_starts(self.row, shape[0])
        self._units: dict[torch.dtype, Tensor] = {}

    @classmethod
    def selection(cls, index: Tensor, size: int) -> SparseMatrix:
        """The matrix that takes rows: `(S x)[i] = x[index[i]]`, 0 where the index is negative."""
        place = (index >= 0).nonzero().squeeze(-1)
        return cls(place, index[place], (len(index), size))

    @cached_property
    def mT(self) -> SparseMatrix:
        """The transpose; the values of its entries are taken from this matrix's by `mT.order`."""
        return SparseMatrix(self.column, self.row, (self.shape[1], self.shape[0]))

    def __matmul__(self, x: Tensor) -> Tensor:
        """The product of the matrix whose entries are 1."""
        if x.ndim == 2:
            return _UnitProduct.apply(self, x)
        parts = [_UnitProduct.apply(self, part) for part in x.flatten(0, -3)]
        return torch.stack(parts).unflatten(0, x.shape[:-2])

    def unit(self, dtype: torch.dtype) -> Tensor:
        """The matrix whose entries are 1, as torch's sparse CSR matrix."""
        if dtype not in self._units:
            ones = torch.ones(len(self.row), dtype=dtype, device=self.row.device)
            self._units[dtype] = self.tensor(ones)
        return self._units[dtype]

    def product(self, values: Tensor, x: Tensor) -> Tensor:
        """The product with entries `values` (..., E), in this matrix's order."""
        lead = torch.broadcast_shapes(values.shape[:-1], x.shape[:-2])
        if not lead:
            return _Product.apply(self, values, x)
        values = values.expand(*lead, values.shape[-1]).flatten(0, -2)
        x = x.expand(*lead, *x.shape[-2:]).flatten(0, -3)
        parts = [_Product.apply(self, *pair) for pair in zip(values, x, strict=True)]
        return torch.stack(parts).unflatten(0, lead)

    def tensor(self, values: Tensor) -> Tensor:
        """As torch's sparse CSR matrix."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
            return torch.sparse_csr_tensor(
                self.starts, self.column, values, self.shape, check_invariants=False
            )


class _UnitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.unit(x.dtype) @ x.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (grad,) = grads
        return None, ctx.matrix.mT.unit(grad.dtype) @ grad.contiguous()


class _Product(torch.autograd.Function):
    """One matrix, one set of columns. The gradient of the values has E entries, never R x N."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, x if ctx.needs_input_grad[1] else None)
        return matrix.tensor(values) @ x.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        matrix, grad = ctx.matrix, grads[0].contiguous()
        values, x = ctx.saved_tensors
        grad_values = grad_x = None
        if ctx.needs_input_grad[1]:
            pattern = matrix.tensor(torch.zeros_like(values))
            sampled = torch.sparse.sampled_addmm(pattern, grad, x.mT, beta=0.0)
            grad_values = sampled.values()
        if ctx.needs_input_grad[2]:
            grad_x = matrix.mT.tensor(values[matrix.mT.order]) @ grad
        return None, grad_values, grad_x
