"""Sparse matrices as masks, with gradients to their values that never form a dense matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.precision import full_precision

from .base import Mask, as_length, check_columns, check_rows
from .entries import Entries


class Sparse(Mask):
    """A weighted adjacency matrix as a mask (paper, Sec. 3.1). O(edges).

    `M[i, j]` is the sum of the weights of the edges (i, j): `edge_index[0]` holds the queries and
    `edge_index[1]` the keys that they see. `edge_index` is (2, E), `weight` (..., E).
    `nonnegative` promises that no weight is negative.
    """

    prefers_row_major = True
    tensor_names = ("edge_index", "weight")
    _entries: Entries | None = None

    def __init__(
        self, edge_index: Tensor, weight: Tensor, length: int, *, nonnegative: bool = False
    ):
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
        self.nonnegative = nonnegative

    def check(self) -> None:
        outside = (self.edge_index < 0) | (self.edge_index >= self.length)
        if outside.any():
            edge = int(outside.any(0).nonzero()[0])
            raise ValueError(
                f"edge {edge} joins {self.edge_index[:, edge].tolist()}, "
                f"but tokens go from 0 to {self.length - 1}"
            )
        super().check()

    @property
    def batch_shape(self) -> torch.Size:
        return self.weight.shape[:-1]

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return self.entries().product(self.weight, x)

    def entries(self) -> Entries:
        """Return where the edges are; they are sorted at the first product."""
        if self._entries is None or self._entries.index is not self.edge_index:
            self._entries = Entries(self.edge_index, (self.length, self.length))
        return self._entries

    def dense(self) -> Tensor:
        return self.rows(0, self.length)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        query, key = self.edge_index
        inside = ((query >= start) & (query < stop)).nonzero().squeeze(-1)
        position = (query[inside] - start) * self.length + key[inside]
        slab = self.weight.new_zeros(*self.weight.shape[:-1], (stop - start) * self.length)
        return slab.index_add(-1, position, self.weight[..., inside]).unflatten(
            -1, (stop - start, self.length)
        )

    def cost(self, columns: int) -> float:
        return 4.0 * columns * (self.edge_index.shape[1] + self.length)

    def abs_bound(self) -> Mask:
        weight = self.weight.detach().abs()
        bound = Sparse(self.edge_index, weight, self.length, nonnegative=True)
        bound._entries = self.entries()
        return bound
