"""Masks of any function of the distance in a tree (paper, Sec. 3.3 and 6).

Nodes of different trees of a forest have weight 0.

Shapes: L nodes, C columns; leading dims of the values are heads.
"""

from __future__ import annotations

from functools import cached_property
from math import log2

import torch
from torch import Tensor

from vit_rpe.masks import Mask, Packing, Scaled, Toeplitz
from vit_rpe.masks.helpers import (
    Folded,
    SparseMatrix,
    as_values,
    check_columns,
    check_rows,
    widest_dtype,
)
from vit_rpe.precision import full_precision

from ..base import GraphMask
from ..edges import Graph
from .forest import Forest
from .separators import COLUMNS, Separators

ALGORITHMS = ("auto", "centroid", "histogram")
# Distances of a histogram that take as long as one round of separators (docs/graphs.md).
_ROUND = 1.5


class TreeFunction(GraphMask):
    """The mask `M[i, j] = values[dist(i, j)]` on an unweighted forest: any function of distance.

    `values` is (..., D), learnable, with D more than the diameter (the longest distance); values
    beyond the diameter have no effect. Two algorithms give the same numbers:

    - `centroid`: balanced separators and Hankel FFTs, O(L log^2 L) a column (Lemma 6.1);
    - `histogram`: sums by distance, passed along the edges, O(L diameter) a column (Lemma 6.2);
    - `auto` takes the second for a small diameter; a single path is a Toeplitz matrix, O(L log L).
    """

    normwise = True
    tensor_names = ("values",)

    def __init__(
        self,
        edge_index: Tensor | Graph,
        values: Tensor,
        *,
        num_nodes: int | None = None,
        algorithm: str = "auto",
        nonnegative: bool = False,
    ):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
        self.forest = Forest(edge_index, num_nodes=num_nodes)
        self.length = self.forest.num_nodes
        self.values = as_values(values, "values")
        self.nonnegative = nonnegative
        self.check_shapes()
        small = self.forest.diameter <= _ROUND * self._rounds
        self.by_histogram = algorithm == "histogram" or (algorithm == "auto" and small)
        is_path = self.forest.diameter == self.length - 1
        self.along = self.forest.along_path() if algorithm == "auto" and is_path else None

    def check_shapes(self) -> None:
        needed = self.forest.diameter + 1
        if self.values.ndim < 1 or self.values.shape[-1] < needed:
            raise ValueError(
                f"a forest of diameter {needed - 1} needs values of shape (..., {needed}) or more, "
                f"one for each distance from 0; got {tuple(self.values.shape)}"
            )

    @property
    def _rounds(self) -> float:
        """The approximate number of rounds in which parts are split until they are small."""
        return max(1.0, log2(self.length / 64))

    @cached_property
    def _separators(self) -> Separators:
        return Separators(self.forest)

    @cached_property
    def _to_children(self) -> SparseMatrix:
        return SparseMatrix.selection(self.forest.parent, self.length)

    @property
    def batch_shape(self) -> torch.Size:
        return self.values.shape[:-1]

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = widest_dtype(self.compute_dtype(x.dtype), self.values)
        folded = Folded(x.to(dtype), self.batch_shape)
        values = folded.values(self.values.to(dtype), own_dims=1)
        if self.along is not None:
            result = self._path(folded.columns, values, self.along)
        elif self.by_histogram:
            chunks = folded.columns.split(COLUMNS, -1)
            result = torch.cat([self._histogram(chunk, values) for chunk in chunks], -1)
        else:
            result = self._separators.sums(folded.columns, values)
        return folded.unfold(result).to(x.dtype)

    def _path(self, x: Tensor, values: Tensor, along: Tensor) -> Tensor:
        values = values[..., : self.length]
        sequence = Toeplitz(torch.cat([values[..., 1:].flip(-1), values], -1), (self.length,))
        return sequence.matmul(x[..., along, :])[..., torch.argsort(along), :]

    def _histogram(self, x: Tensor, values: Tensor) -> Tensor:
        """Compute sum_l values[l] h_l, where h_l[i] sums x over the nodes at distance l from i.

        g_l[i] is the same within the subtree of i; with p the parent of i (paper, Lemma 6.2):

            g_l[i] = sum over children of g_{l-1},    h_l[i] = g_l[i] + h_{l-1}[p] - g_{l-2}[i]
        """
        down, up = self._to_children, self._to_children.mT
        has_parent = (self.forest.parent >= 0).to(x.dtype)[:, None]
        before, g, h = torch.zeros_like(x), x, x
        result = values[..., :1, None] * x
        for distance in range(1, self.forest.diameter + 1):
            before, g, two_before = g, up @ g, before
            h = g + down @ h - has_parent * two_before
            result = result + values[..., distance, None, None] * h
        return result

    @full_precision
    def dense(self) -> Tensor:
        ones = torch.ones(self.length, dtype=torch.float64, device=self.values.device)
        distance = self.forest.distances(ones.masked_fill(self.forest.parent < 0, 0.0))
        apart = distance == torch.inf
        return self._weights(distance.masked_fill(apart, -1.0).round().long())

    @full_precision
    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        nodes = torch.arange(self.length, device=self.values.device)
        return self._weights(self.forest.hops(nodes[start:stop, None], nodes))

    def _weights(self, hops: Tensor) -> Tensor:
        weights = self.values[..., hops.clamp(min=0)]
        return weights.masked_fill(hops < 0, 0.0)

    def precise(self) -> Mask:
        return self.with_values(values=self.values.double())

    def components(self) -> Tensor:
        return self.forest.tree

    def cost(self, columns: int) -> float:
        work = 8.0 * self.forest.diameter if self.by_histogram else 40.0 * self._rounds
        return (work + 2) * self.length * columns

    def abs_bound(self) -> Mask:
        """A mask of max|f| within every tree: the error of an FFT may fall into any row."""
        largest = self.values.detach().abs().amax(-1)
        left = largest[..., None].expand(*largest.shape, self.length)
        return Scaled(Packing(self.forest.tree), left=left)
