"""Masks that decay exponentially with the distance in a tree (paper, Sec. 3.3, Lemma 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import Folded, as_values, check_columns, check_rows, widest_dtype
from vit_rpe.precision import full_precision

from ..base import GraphMask
from ..edges import Graph, as_graph
from .forest import Forest
from .heavy_paths import HeavyPaths


class TreeExponential(GraphMask):
    """The mask `M[i, j] = exp(a dist(i, j) + b)` on a weighted forest (Lemma 3.5). O(L) a column.

    `a` and `b` are numbers or tensors (...), one per head, and learnable; so are the weights of the
    edges, which are their lengths. `edge_weight=None` is 1 for every edge. Two passes over the
    levels of heavy paths, at most log2 L of them however long the tree is.

    Lengths may be negative, as learned ones become in training; dist is then the signed sum along
    the path. What passes through a node is as large as M there: with lengths of both signs no
    entry of M may overflow or underflow x's precision (float32 at least).
    """

    tensor_names = ("edge_weight", "a", "b")

    def __init__(
        self,
        edge_index: Tensor | Graph,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        a: float | Tensor = -1.0,
        b: float | Tensor = 0.0,
        nonnegative: bool = False,
    ):
        graph = as_graph(
            edge_index, edge_weight, num_nodes=num_nodes, nonnegative=False, learnable=True
        )
        self.length = graph.num_nodes
        self.forest = Forest(graph)
        self.paths = HeavyPaths(self.forest)
        self.num_edges = graph.num_edges
        self.edge_weight = graph.weights
        self.a = as_values(a, "a")
        self.b = as_values(b, "b")
        self.nonnegative = nonnegative
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
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(self.a.shape, self.b.shape)

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = widest_dtype(self.compute_dtype(x.dtype), self.a, self.b)
        folded = Folded(x.to(dtype), self.batch_shape)
        a, b = (folded.values(value.to(dtype)) for value in (self.a, self.b))
        lengths = self.forest.edge_lengths(self.edge_weight)
        result = self.paths.sums(folded.columns, a, lengths)
        return folded.unfold(b.exp()[..., None, None] * result).to(x.dtype)

    @full_precision
    def dense(self) -> Tensor:
        return self._weights(self.forest.distances(self.forest.edge_lengths(self.edge_weight)))

    @full_precision
    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        nodes = torch.arange(self.length, device=self.edge_weight.device)
        query = nodes[start:stop, None]
        above = self.forest.common_ancestor(query, nodes)
        root = self.paths.from_root(self.forest.edge_lengths(self.edge_weight))
        distance = root[query] + root - 2 * root[above]
        return self._weights(distance.masked_fill(above < 0, torch.inf))

    def _weights(self, distance: Tensor) -> Tensor:
        """Evaluate exp(a z + b), with 0 at infinite distance whatever the sign of a."""
        apart = distance == torch.inf
        dtype = torch.promote_types(self.a.dtype, self.b.dtype)
        distance = distance.masked_fill(apart, 0.0).to(dtype)
        exponent = self.a[..., None, None] * distance + self.b[..., None, None]
        return exponent.masked_fill(apart, -torch.inf).exp()

    def components(self) -> Tensor:
        return self.forest.tree

    def cost(self, columns: int) -> float:
        return 60.0 * self.length * columns

    def abs_bound(self) -> Mask:
        """The mask itself: its entries are positive, and its product subtracts nothing."""
        return self.with_values(
            edge_weight=self.edge_weight.detach(), a=self.a.detach(), b=self.b.detach()
        )
