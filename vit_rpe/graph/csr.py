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

_CACHE = 8 << 20  # bytes of a CPU's cache that the gathered columns may fill
_LINE = 64  # bytes that come from memory together


def block_width(rows: int, x: Tensor) -> int:
    """How many columns of x to multiply at a time, if `rows` numbers of each are read at random."""
    if x.device.type != "cpu":
        return max(1, x.shape[-1])
    lines = max(1, _CACHE // (_LINE * rows))
    return lines * _LINE // x.element_size()


def local_order(row: Tensor, column: Tensor, n: int) -> Tensor:
    """An order of the nodes that keeps neighbours close: reverse Cuthill-McKee, by scipy.

    On a CPU, products are 1.3 to 1.9 times as fast in it (docs/graphs.md). Without scipy the
    order stays as it is.
    """
    try:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee
    except ModuleNotFoundError:
        return torch.arange(n, device=row.device)
    if row.device.type != "cpu" or not len(row):
        return torch.arange(n, device=row.device)
    entries = torch.ones(len(row)).numpy(), (row.numpy(), column.numpy())
    order = reverse_cuthill_mckee(csr_array(entries, shape=(n, n)), symmetric_mode=True)
    return torch.from_numpy(order.astype("int64"))


class SparseMatrix:
    """A sparse matrix known by its entries, which may be given as often as one likes.

    The pattern is sorted once, for the matrix and its transpose; `product` takes values (..., E)
    that may change from call to call and have gradients.
    """

    def __init__(self, row: Tensor, column: Tensor, shape: tuple[int, int]):
        self.shape = shape
        self.order = torch.argsort(row.long() * shape[1] + column)
        # int32 where it is enough: MKL wants it, and would convert with every product
        small = max(len(row), *shape) < 2**31
        self.column = column[self.order].to(torch.int32 if small else torch.int64)
        self.starts = row_starts(row, shape[0]).to(self.column.dtype)
        self._units: dict[torch.dtype, Tensor] = {}

    @classmethod
    def selection(cls, index: Tensor, size: int) -> SparseMatrix:
        """The matrix that takes rows: `(S x)[i] = x[index[i]]`, 0 where the index is negative."""
        place = (index >= 0).nonzero().squeeze(-1)
        return cls(place, index[place], (len(index), size))

    @property
    def num_entries(self) -> int:
        return len(self.column)

    @cached_property
    def row(self) -> Tensor:
        """The row of each entry, int64."""
        rows = torch.arange(self.shape[0], device=self.column.device)
        return rows.repeat_interleave(self.starts.diff(), output_size=self.num_entries)

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
            ones = torch.ones(self.num_entries, dtype=dtype, device=self.column.device)
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
