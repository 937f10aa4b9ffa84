"""Sparse matrices with a fixed pattern, multiplied as CSR: much faster than gather and add.

Shapes: a matrix is (R, N) with E entries; x is (..., N, C), the result (..., R, C).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

_CACHE = 8 << 20  # bytes of a CPU's cache that the gathered columns may fill
_LOOKUPS = 1 << 22  # entries that are looked up at a time
_LINE = 64  # bytes of a cache line


class Folded:
    """Columns (..., L, C) as (H..., L, B C): leading dims that the mask does not have are columns.

    A mask without heads then multiplies two-dimensional matrices, however many samples there are.
    """

    def __init__(self, x: Tensor, lead: torch.Size):
        self.full = torch.broadcast_shapes(x.shape[:-2], lead)
        n = len(self.full)
        lead = torch.Size([1] * (n - len(lead)) + list(lead))
        self.own = [i for i in range(n) if lead[i] > 1]
        self.others = [i for i in range(n) if lead[i] == 1]
        self.order = [*self.own, n, *self.others, n + 1]
        x = x.expand(*self.full, *x.shape[-2:]).permute(self.order)
        self.tail = x.shape[len(self.own) + 1 :]
        self.columns = x.reshape(*x.shape[: len(self.own) + 1], -1)

    def values(self, value: Tensor, own_dims: int = 0) -> Tensor:
        """Reshape a value of the mask, (lead..., own dims), to drop leading dims of size 1."""
        shape = value.shape[value.ndim - own_dims :]
        lead = value.shape[: value.ndim - own_dims]
        full = [1] * (len(self.full) - len(lead)) + list(lead)
        return value.reshape([*(full[i] for i in self.own), *shape])

    def unfold(self, result: Tensor) -> Tensor:
        """Bring columns of the result back to the leading dims of x."""
        result = result.reshape(*result.shape[:-1], *self.tail)
        inverse = [self.order.index(i) for i in range(len(self.order))]
        return result.permute(inverse)


def block_width(rows: int, x: Tensor) -> int:
    """Choose how many columns of x to multiply at a time, if `rows` of them are read at random."""
    if x.device.type != "cpu":
        return max(1, x.shape[-1])
    lines = max(1, _CACHE // (_LINE * rows))
    return lines * _LINE // x.element_size()


def row_starts(row: Tensor, num_rows: int) -> Tensor:
    """Find where each row begins in a sorted list of row numbers, (num_rows + 1,)."""
    counts = torch.bincount(row, minlength=num_rows)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


class SparseMatrix:
    """A fixed sparsity pattern; duplicate entries add up.

    The pattern is sorted once, for the matrix and its transpose; `product` takes values (..., E)
    that may change from call to call and have gradients. `in_order` brings values that were given
    with the entries into the matrix's order. Indices are int32 where that is enough: MKL needs it,
    and would convert them in every product.
    """

    _order: Tensor | None = None  # the given position of each entry; None: they came in order

    def __init__(self, row: Tensor, column: Tensor, shape: tuple[int, int]):
        self._order = torch.argsort(row.long() * shape[1] + column)
        self._set(row_starts(row, shape[0]), column[self._order], shape)

    def _set(self, starts: Tensor, column: Tensor, shape: tuple[int, int]) -> None:
        index = torch.int32 if max(len(column), *shape) < 2**31 else torch.int64
        self.shape = shape
        self.starts, self.column = starts.to(index), column.to(index)
        self._units: dict[torch.dtype, Tensor] = {}

    @classmethod
    def from_sorted(cls, starts: Tensor, column: Tensor, shape: tuple[int, int]) -> SparseMatrix:
        """Make the matrix from entries that are sorted by row, then column, without duplicates."""
        matrix = cls.__new__(cls)
        matrix._set(starts, column, shape)
        return matrix

    @classmethod
    def selection(cls, index: Tensor, size: int) -> SparseMatrix:
        """Make the matrix that selects rows: `(S x)[i] = x[index[i]]`, 0 for a negative index."""
        row = (index >= 0).nonzero().squeeze(-1)
        return cls(row, index[row], (len(index), size))

    def parts(self) -> Tensor:
        """Find the finest cut into consecutive parts that no entry joins, their sizes. O(R).

        The matrix is square; the columns of a row are sorted.
        """
        n = self.shape[0]
        nodes = torch.arange(n, device=self.column.device)
        filled = (self.starts.diff() > 0).nonzero().squeeze(-1)
        low, high = nodes.clone(), nodes.clone()
        low[filled] = torch.minimum(nodes[filled], self.column[self.starts[:-1][filled]].long())
        high[filled] = torch.maximum(nodes[filled], self.column[self.starts[1:][filled] - 1].long())
        # a row from `low` to `high` crosses all borders between: border b is before node b
        crossings = torch.zeros(n + 1, dtype=torch.int64, device=nodes.device)
        ones = torch.ones_like(nodes)
        crossings.index_add_(0, low + 1, ones).index_add_(0, high + 1, -ones)
        borders = (crossings.cumsum(0) == 0).nonzero().squeeze(-1)
        return torch.nn.functional.pad(borders[borders > 0], (1, 0)).diff()

    def blocks(self, values: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Form square blocks on the diagonal, which hold all of their rows: (..., B, n, n).

        Blocks are padded by zeros to the largest.
        """
        n, device = max(sizes), self.column.device
        begin, size = (torch.tensor(x, device=device) for x in (starts, sizes))
        first, last = (self.starts.long()[x] for x in (begin, begin + size))
        block = torch.arange(len(starts), device=device).repeat_interleave(last - first)
        entry = torch.arange(len(block), device=device) + (last - (last - first).cumsum(0))[block]
        row, column = (
            x.index_select(0, entry).long() - begin[block] for x in (self.row, self.column)
        )
        position = (block * n + row) * n + column
        slab = values.new_zeros(*values.shape[:-1], len(starts) * n * n)
        slab = slab.index_add(-1, position, values.index_select(-1, entry))
        return slab.unflatten(-1, (len(starts), n, n))

    def in_order(self, values: Tensor) -> Tensor:
        """Bring values (..., E) from the order of the given entries into that of the matrix."""
        return values if self._order is None else values.index_select(-1, self._order)

    @property
    def num_entries(self) -> int:
        return len(self.column)

    @property
    def row(self) -> Tensor:
        """The row of each entry."""
        rows = torch.arange(self.shape[0], dtype=self.column.dtype, device=self.column.device)
        return rows.repeat_interleave(self.starts.diff(), output_size=self.num_entries)

    @cached_property
    def mT(self) -> SparseMatrix:
        """The transpose; the values of its entries are `transposed`."""
        starts = row_starts(self.column, self.shape[1])
        shape = (self.shape[1], self.shape[0])
        transpose = SparseMatrix.from_sorted(starts, self.row[self._across], shape)
        transpose.__dict__["mT"] = self
        return transpose

    @cached_property
    def _across(self) -> Tensor:
        """For each entry of the transpose, its position in this matrix."""
        return torch.argsort(self.column, stable=True).to(self.column.dtype)

    def transposed(self, values: Tensor) -> Tensor:
        """Bring values (..., E) into the order of the transpose's entries."""
        return values.index_select(-1, self._across)

    def __matmul__(self, x: Tensor) -> Tensor:
        """Multiply by the matrix whose entries are 1."""
        if x.ndim == 2:
            return _UnitProduct.apply(self, x)
        parts = [_UnitProduct.apply(self, part) for part in x.flatten(0, -3)]
        return torch.stack(parts).unflatten(0, x.shape[:-2])

    def unit(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix whose entries are 1, as torch's sparse CSR matrix."""
        if dtype not in self._units:
            ones = torch.ones(self.num_entries, dtype=dtype, device=self.column.device)
            self._units[dtype] = self.tensor(ones)
        return self._units[dtype]

    def product(self, values: Tensor, x: Tensor, transposed: Tensor | None = None) -> Tensor:
        """Multiply by the matrix with entries `values` (..., E), in this matrix's order.

        Pass `transposed` if already computed; backward needs it.
        """
        lead = torch.broadcast_shapes(values.shape[:-1], x.shape[:-2])
        if not lead:
            return _Product.apply(self, values, x, transposed)
        values = values.expand(*lead, values.shape[-1]).flatten(0, -2)
        x = x.expand(*lead, *x.shape[-2:]).flatten(0, -3)
        across: Sequence[Tensor | None] = [None] * len(values)
        if transposed is not None:
            across = list(transposed.expand(*lead, -1).flatten(0, -2))
        parts = [_Product.apply(self, *args) for args in zip(values, x, across, strict=True)]
        return torch.stack(parts).unflatten(0, lead)

    def row_dots(self, values: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Compute dot products of pairs of rows: values (..., E), pairs (P,) -> (..., P).

        Each entry of the first row is looked up in the second; some pairs at a time.
        """
        keys = self.row.long() * self.shape[1] + self.column
        count = self.starts.diff().long()
        step = max(1, _LOOKUPS // max(1, int(count.max())))
        parts = [
            self._row_dots(values, keys, count, *pair)
            for pair in zip(first.split(step), second.split(step), strict=True)
        ]
        return torch.cat(parts, -1) if parts else values[..., :0]

    def _row_dots(
        self, values: Tensor, keys: Tensor, count: Tensor, first: Tensor, second: Tensor
    ) -> Tensor:
        pairs = torch.arange(len(first), device=first.device)
        pair = pairs.repeat_interleave(count[first])
        begin = self.starts[first].long() - (count[first].cumsum(0) - count[first])
        entry = begin[pair] + torch.arange(len(pair), device=first.device)
        wanted = second[pair] * self.shape[1] + self.column[entry]
        other = torch.searchsorted(keys, wanted).clamp(max=max(len(keys) - 1, 0))
        met = (keys[other] == wanted).nonzero().squeeze(-1)
        products = values[..., entry[met]] * values[..., other[met]]
        return values.new_zeros(*values.shape[:-1], len(first)).index_add(-1, pair[met], products)

    def tensor(self, values: Tensor) -> Tensor:
        """Return torch's sparse CSR matrix with these values."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
            return torch.sparse_csr_tensor(
                self.starts, self.column, values, self.shape, check_invariants=False
            )


@dataclass(frozen=True)
class SparseFactor:
    """A sparse matrix, with its values in both orders of the entries."""

    pattern: SparseMatrix
    values: Tensor
    transposed: Tensor

    def csr(self) -> tuple[Tensor, ...]:
        """Starts, columns and values of the matrix, then those of its transpose."""
        pattern, across = self.pattern, self.pattern.mT
        return (
            pattern.starts, pattern.column, self.values,
            across.starts, across.column, self.transposed,
        )  # fmt: skip


class _UnitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.unit(x.dtype) @ x.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, _UnitProduct.apply(ctx.matrix.mT, *grads)


class _Product(torch.autograd.Function):
    """The product of one matrix and one set of columns; gradients of values have E entries.

    Its gradients are such products and `_Samples`, and those of `_Samples` are such products:
    both can be differentiated any number of times.
    """

    @staticmethod
    def forward(
        ctx: Any, matrix: SparseMatrix, values: Tensor, x: Tensor, transposed: Tensor | None
    ) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, x if ctx.needs_input_grad[1] else None, transposed)
        return matrix.tensor(values) @ x.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), matrix = grads, ctx.matrix
        values, x, transposed = ctx.saved_tensors
        grad_values = grad_x = None
        if ctx.needs_input_grad[1]:
            grad_values = _Samples.apply(matrix, grad, x)
        if ctx.needs_input_grad[2]:
            if transposed is None:
                transposed = matrix.transposed(values)
            grad_x = _Product.apply(matrix.mT, transposed, grad, values)
        return None, grad_values, grad_x, None  # `transposed` are the values once more


class _Samples(torch.autograd.Function):
    """The dot products left[i] . right[j] at the entries (i, j): (R, C), (N, C) -> (E,)."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, left: Tensor, right: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(left, right)
        pattern = matrix.tensor(left.new_zeros(matrix.num_entries))
        return torch.sparse.sampled_addmm(pattern, left.contiguous(), right.mT, beta=0.0).values()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), matrix = grads, ctx.matrix
        left, right = ctx.saved_tensors
        across = matrix.transposed(grad)
        return (
            None,
            _Product.apply(matrix, grad, right, across),
            _Product.apply(matrix.mT, across, left, grad),
        )
