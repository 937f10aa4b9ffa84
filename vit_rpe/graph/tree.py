"""Masks f(dist(i, j)) on trees and forests (paper, Sec. 3.3 and 6). Other trees have weight 0.

Shapes: L nodes, C columns; leading dims of the values are heads.
"""

from __future__ import annotations

from functools import cached_property
from math import log2

import torch
from torch import Tensor

from vit_rpe.masks import Mask, Packing, Scaled, Toeplitz
from vit_rpe.masks.base import check_columns, check_rows

from .base import Folded, GraphMask, as_values
from .centroid import COLUMNS, Separators
from .csr import SparseMatrix
from .edges import as_graph, edge_weights
from .forest import Forest
from .heavy_paths import HeavyPaths

ALGORITHMS = ("auto", "centroid", "histogram")
# Distances of a histogram that take as long as one round of separators (docs/graphs.md).
_ROUND = 1.5


class TreeExponential(GraphMask):
    """`M[i, j] = exp(a dist(i, j) + b)` on a weighted forest (paper, Lemma 3.5). O(L) a column.

    `a` and `b` are numbers or tensors (...), one for each head, and learnable; so are the weights
    of the edges, which are their lengths. `edge_weight=None` is 1 for every edge. Two passes over
    the levels of heavy paths, at most log2 L of them however long the tree is.

    Lengths may be negative, as learned ones become in training; dist is then the signed sum along
    the path. What passes through a node is as large as M there: with lengths of both signs no
    entry of M may overflow or underflow x's precision (float32 at least).
    """

    tensor_names = ("edge_weight", "a", "b")

    def __init__(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        a: float | Tensor = -1.0,
        b: float | Tensor = 0.0,
        num_nodes: int | None = None,
    ):
        self.length = as_graph(
            edge_index, num_nodes, edge_weight, nonnegative=False, learnable=True
        )
        self.forest = Forest(edge_index, self.length)
        self.paths = HeavyPaths(self.forest)
        self.num_edges = edge_index.shape[1]
        self.edge_weight = edge_weights(edge_index, edge_weight)
        self.a = as_values(a, "a")
        self.b = as_values(b, "b")
        self.check_shapes()

    def check_shapes(self) -> None:
        try:
            torch.broadcast_shapes(self.a.shape, self.b.shape)
        except RuntimeError as error:
            raise ValueError(
                "a and b must have shapes that fit together, one value for each head, "
                f"got {tuple(self.a.shape)} and {tuple(self.b.shape)}"
            ) from error
        if tuple(self.edge_weight.shape) != (self.num_edges,):
            raise ValueError(
                f"{self.num_edges} edges need edge_weight of shape ({self.num_edges},), "
                f"got {tuple(self.edge_weight.shape)}"
            )

    @property
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes(self.a.shape, self.b.shape)

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = _widest(self.compute_dtype(x.dtype), self.a, self.b)
        folded = Folded(x.to(dtype), self.lead)
        a, b = (folded.values(value.to(dtype)) for value in (self.a, self.b))
        lengths = self.forest.edge_lengths(self.edge_weight)
        result = self.paths.sums(folded.columns, a, lengths)
        return folded.unfold(b.exp()[..., None, None] * result).to(x.dtype)

    def dense(self) -> Tensor:
        return self._weights(self.forest.distances(self.forest.edge_lengths(self.edge_weight)))

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        nodes = torch.arange(self.length, device=self.edge_weight.device)
        query = nodes[start:stop, None]
        above = self.forest.common_ancestor(query, nodes)
        root = self.paths.from_root(self.forest.edge_lengths(self.edge_weight))
        distance = root[query] + root - 2 * root[above]
        return self._weights(distance.masked_fill(above < 0, torch.inf))

    def _weights(self, distance: Tensor) -> Tensor:
        """exp(a z + b), 0 at infinite distance whatever the sign of a."""
        apart = distance == torch.inf
        dtype = torch.promote_types(self.a.dtype, self.b.dtype)
        distance = distance.masked_fill(apart, 0.0).to(dtype)
        exponent = self.a[..., None, None] * distance + self.b[..., None, None]
        return exponent.masked_fill(apart, -torch.inf).exp()

    def components(self) -> Tensor:
        return self.forest.tree

    def cost(self, columns: int) -> float:
        return 60.0 * self.length * columns

    def magnitude(self) -> Mask:
        """Itself: its entries are positive, and its product is a sum without differences."""
        return self.with_values(
            edge_weight=self.edge_weight.detach(), a=self.a.detach(), b=self.b.detach()
        )


class TreeFunction(GraphMask):
    """`M[i, j] = values[dist(i, j)]` on an unweighted forest, for any function of the distance.

    `values` is (..., D), learnable, with D more than the diameter (the longest distance); what is
    beyond the diameter has no effect. Two algorithms give the same numbers:

    - `centroid`: balanced separators and Hankel FFTs, O(L log^2 L) a column (Lemma 6.1);
    - `histogram`: sums by distance, passed along the edges, O(L diameter) a column (Lemma 6.2);
    - `auto` takes the second for a small diameter; a single path is a Toeplitz matrix, O(L log L).
    """

    normwise = True
    tensor_names = ("values",)

    def __init__(
        self,
        edge_index: Tensor,
        values: Tensor,
        num_nodes: int | None = None,
        algorithm: str = "auto",
    ):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
        self.forest = Forest(edge_index, num_nodes)
        self.length = self.forest.num_nodes
        self.values = as_values(values, "values")
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
        """About how often parts are split in two until they are small."""
        return max(1.0, log2(self.length / 64))

    @cached_property
    def _separators(self) -> Separators:
        return Separators(self.forest)

    @cached_property
    def _to_children(self) -> SparseMatrix:
        return SparseMatrix.selection(self.forest.parent, self.length)

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = _widest(self.compute_dtype(x.dtype), self.values)
        folded = Folded(x.to(dtype), self.lead)
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
        """sum_l values[l] h_l, where h_l[i] sums x over the nodes at distance l from i.

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

    def dense(self) -> Tensor:
        ones = torch.ones(self.length, dtype=torch.float64, device=self.values.device)
        distance = self.forest.distances(ones.masked_fill(self.forest.parent < 0, 0.0))
        apart = distance == torch.inf
        return self._weights(distance.masked_fill(apart, -1.0).round().long())

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

    def magnitude(self) -> Mask:
        """max|f| within every tree: the error of an FFT does not know which row it falls into."""
        largest = self.values.detach().abs().amax(-1)
        left = largest[..., None].expand(*largest.shape, self.length)
        return Scaled(Packing(self.forest.tree), left=left)


def _widest(dtype: torch.dtype, *values: Tensor) -> torch.dtype:
    """A number given as such is float64 but not a wish for it: only tensors of dims count."""
    for value in values:
        if value.ndim:
            dtype = torch.promote_types(dtype, value.dtype)
    return dtype
