"""Products of sparse matrices that are given by the positions and values of their entries.

Shapes: a matrix is (R, N) with E entries; values are (..., E), x is (..., N, C).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from vit_rpe.precision import in_function_transform

from .csr import Folded, SparseMatrix


class Entries:
    """The positions of the entries of a sparse matrix, `index` (2, E); duplicates add up.

    They are sorted at the first product, and then used by all of them.
    """

    def __init__(self, index: Tensor, shape: tuple[int, int]):
        self.index = index
        self.shape = shape

    @cached_property
    def matrix(self) -> SparseMatrix:
        size = torch.tensor(self.shape, device=self.index.device)[:, None]
        outside = ((self.index < 0) | (self.index >= size)).any(0)
        if outside.any():  # a sparse product would read beyond its columns
            entry = int(outside.nonzero()[0])
            raise ValueError(
                f"entry {entry} is at {self.index[:, entry].tolist()}, "
                f"outside of a matrix of {self.shape[0]} x {self.shape[1]}"
            )
        return SparseMatrix(self.index[0], self.index[1], self.shape)

    def product(self, values: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
        """Multiply S x, or S^T x, in float32 at least: (..., N, C) -> (..., R, C)."""
        dtype = torch.promote_types(torch.promote_types(values.dtype, x.dtype), torch.float32)
        values, columns = values.to(dtype), x.to(dtype)
        if not all(map(_is_plain, (self.index, values, columns))):
            return self._gather_and_add(values, columns, transpose).to(x.dtype)
        matrix = self.matrix
        values = matrix.in_order(values)
        if transpose:
            values, matrix = matrix.transposed(values), matrix.mT
        folded = Folded(columns, values.shape[:-1])
        result = matrix.product(folded.values(values, own_dims=1), folded.columns)
        return folded.unfold(result).to(x.dtype)

    def _gather_and_add(self, values: Tensor, x: Tensor, transpose: bool) -> Tensor:
        """Multiply by differentiable operations, for transforms of torch.func and for tracing."""
        (row, column), size = self.index, self.shape[0]
        if transpose:
            row, column, size = column, row, self.shape[1]
        weighted = values[..., None] * x[..., column, :]
        zeros = weighted.new_zeros(*weighted.shape[:-2], size, x.shape[-1])
        return zeros.index_add(-2, row, weighted)


def _is_plain(x: Tensor) -> bool:
    """Tell whether a tensor has values, and functions of our own may be differentiated."""
    if torch.compiler.is_compiling() or in_function_transform():
        return False
    return type(x) in (Tensor, nn.Parameter) and x.device.type in ("cpu", "cuda")
