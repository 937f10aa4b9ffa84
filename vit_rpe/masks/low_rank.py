"""Masks of low rank (paper, Sec. 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.precision import full_precision

from .base import Mask, as_length, check_columns, check_entries, check_rows
from .entries import Entries


class LowRank(Mask):
    """The mask `M = u v^T`, u and v (..., L, r), each dense or sparse. O(entries of u and v).

    Sparse factors are torch COO or CSR matrices of two dims. Gradients reach their values without a
    dense L x L or L x r matrix. `nonnegative` promises that no entry of M is negative.
    """

    tensor_names = ("u", "v")

    def __init__(self, u: Tensor, v: Tensor, *, nonnegative: bool = False):
        if u.ndim < 2 or v.ndim < 2 or u.shape[-2:] != v.shape[-2:]:
            raise ValueError(
                "LowRank needs u and v of one shape (..., L, r), "
                f"got {tuple(u.shape)} and {tuple(v.shape)}"
            )
        for name, factor in (("u", u), ("v", v)):
            if factor.layout not in (torch.strided, torch.sparse_coo, torch.sparse_csr):
                raise ValueError(f"{name} must be dense, COO or CSR, got {factor.layout}")
            if factor.layout != torch.strided and factor.ndim != 2:
                raise ValueError(
                    f"a sparse {name} must have shape (L, r), got {tuple(factor.shape)}"
                )
        self.length = as_length(u.shape[-2])
        self.u = u
        self.v = v
        self.nonnegative = nonnegative
        self.prefers_row_major = u.layout != torch.strided or v.layout != torch.strided
        self._factors: list[_SparseFactor] = []

    def check(self) -> None:
        for name, factor in self.tensors().items():
            if not torch.isfinite(_values(factor)).all():
                raise ValueError(f"LowRank.{name} has values that are not finite")
        if self.nonnegative:
            self.check_nonnegative()

    def check_nonnegative(self) -> None:
        check_entries(self)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(self.u.shape[:-2], self.v.shape[:-2])

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = self.compute_dtype(x.dtype)
        inner = self._multiply(self.v, x.to(dtype), transpose=True)
        return self._multiply(self.u, inner).to(x.dtype)

    def _multiply(self, factor: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
        if factor.layout != torch.strided:
            return self._sparse(factor).product(x, transpose)
        dtype = torch.promote_types(factor.dtype, x.dtype)
        return (factor.mT if transpose else factor).to(dtype) @ x.to(dtype)

    def _sparse(self, factor: Tensor) -> _SparseFactor:
        """Return u or v with its entries, which are sorted only once."""
        for known in self._factors:
            if known.factor is factor:
                return known
        known = [f for f in self._factors if f.factor is self.u or f.factor is self.v]
        self._factors = [*known, _SparseFactor(factor)]
        return self._factors[-1]

    def dense(self) -> Tensor:
        u, v = (f if f.layout == torch.strided else f.to_dense() for f in (self.u, self.v))
        return u @ v.mT

    @full_precision
    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        return self._multiply(self.v, _dense_rows(self.u, start, stop).mT).mT

    def cost(self, columns: int) -> float:
        return 2.0 * columns * (_entries(self.u) + _entries(self.v))

    def abs_bound(self) -> Mask:
        return LowRank(self.u.detach().abs(), self.v.detach().abs(), nonnegative=True)


class _SparseFactor:
    """A sparse factor, COO or CSR, and the positions of its entries."""

    def __init__(self, factor: Tensor):
        self.factor = factor
        rows, columns = factor.shape
        self.entries = Entries(torch.stack(_indices(factor)), (rows, columns))

    def product(self, x: Tensor, transpose: bool) -> Tensor:
        return self.entries.product(_values(self.factor), x, transpose)


def _dense_rows(factor: Tensor, start: int, stop: int) -> Tensor:
    if factor.layout == torch.strided:
        return factor[..., start:stop, :]
    row, column = _indices(factor)
    inside = ((row >= start) & (row < stop)).nonzero().squeeze(-1)
    position = (row[inside] - start) * factor.shape[1] + column[inside]
    slab = torch.zeros((stop - start) * factor.shape[1], dtype=factor.dtype, device=factor.device)
    return slab.index_add(0, position, _values(factor)[inside]).unflatten(
        0, (stop - start, factor.shape[1])
    )


def _indices(factor: Tensor) -> tuple[Tensor, Tensor]:
    if factor.layout == torch.sparse_coo:
        row, column = factor.coalesce().indices()
        return row, column
    counts = factor.crow_indices().diff().to(torch.int64)
    rows = torch.arange(factor.shape[0], device=factor.device).repeat_interleave(counts)
    return rows, factor.col_indices().to(torch.int64)


def _values(factor: Tensor) -> Tensor:
    if factor.layout == torch.strided:
        return factor
    return factor.coalesce().values() if factor.layout == torch.sparse_coo else factor.values()


def _entries(factor: Tensor) -> int:
    if factor.layout == torch.strided:
        return factor.shape[-2] * factor.shape[-1]
    return 4 * factor._nnz()
