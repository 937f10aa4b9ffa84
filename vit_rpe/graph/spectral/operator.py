"""The matrices T of diffusion kernels exp(-lam T), and their action on columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vit_rpe.masks.helpers import SparseMatrix, block_width

from ..edges import Graph, coalesce, connected_components
from .chebyshev import Interval, coefficients, expand, spectral_interval


@dataclass(frozen=True)
class Kind:
    """A choice of the matrix T: -Adj, plus D for a `laplacian`, over D if `normalized`."""

    laplacian: bool
    normalized: bool


KINDS = {
    "laplacian": Kind(laplacian=True, normalized=False),
    "normalized": Kind(laplacian=True, normalized=True),
    "adjacency": Kind(laplacian=False, normalized=False),
}


def local_order(row: Tensor, column: Tensor, n: int) -> Tensor:
    """Order the nodes so that neighbors are close: reverse Cuthill-McKee, by scipy.

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


def _stacked(x: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Stack slices of x, padded by ones: (B, n)."""
    index = torch.arange(max(sizes), device=x.device)
    begin, size = (torch.tensor(y, device=x.device)[:, None] for y in (starts, sizes))
    inside = index < size
    return x[(begin + index).masked_fill(~inside, 0)].masked_fill(~inside, 1.0)


class Operator:
    """A matrix T of a graph, and the symmetric matrix S with T = R S R^-1, scaled to [-1, 1].

    S has its nodes in another order: row i is node `order[i]`, node j is row `position[j]`.
    """

    def __init__(self, graph: Graph, kind: Kind):
        n = graph.num_nodes
        key, weight = coalesce(graph)
        row, column = key // n, key % n
        degree = weight.new_zeros(n).index_add_(0, row, weight)
        self.degree = degree.masked_fill(degree == 0, 1.0)  # isolated: nothing to divide
        self.kind = kind
        self.adjacency = SparseMatrix(row, column, (n, n)), weight
        self.root = self.degree.sqrt() if kind.normalized else None

        nodes = torch.arange(n, device=row.device)
        value = -weight
        if self.root is not None:
            value = value / (self.root[row] * self.root[column])
        diagonal = degree if kind.laplacian else torch.zeros_like(degree)
        if kind.normalized:
            diagonal = diagonal / self.degree
        # neighbors get numbers that are close, so that what is gathered is in the cache
        self.order = local_order(row, column, n)
        self.position = torch.argsort(self.order)
        row, column = (self.position[torch.cat([end, nodes])] for end in (row, column))
        self.matrix = SparseMatrix(row, column, (n, n))
        self.value = self.matrix.in_order(torch.cat([value, diagonal]))
        # self-loops lie on the diagonal, too: only one entry of each node gets the shift
        given = torch.arange(len(row), device=row.device) >= len(value)
        self.is_diagonal = self.matrix.in_order(given)
        self.interval = self._interval()
        self._scaled: dict[torch.dtype, Tensor] = {}
        self._eigen: dict[object, tuple[Tensor, Tensor]] = {}

    @cached_property
    def components(self) -> Tensor:
        pattern = self.adjacency[0]
        return connected_components(pattern.row, pattern.column, pattern.shape[0])

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Lengths of consecutive parts of the nodes between which there are no edges."""
        return tuple(self.adjacency[0].parts().tolist())

    def eigen(self, starts: Sequence[int], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Decompose blocks of S between nodes: eigenvalues (B, n), vectors (B, n, n); kept."""
        key = tuple(starts), tuple(sizes)
        if key not in self._eigen:
            matrix = self.blocks(starts, sizes)
            if self.root is not None:
                root = _stacked(self.root, starts, sizes)
                matrix = matrix * root[:, None, :] / root[..., None]
            values, vectors = torch.linalg.eigh(matrix)
            self._eigen[key] = values, vectors
        return self._eigen[key]

    def blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Form blocks of T on the diagonal, padded by zeros: (B, n, n)."""
        pattern, weight = self.adjacency
        adjacency = pattern.blocks(pattern.in_order(weight), starts, sizes)
        if not self.kind.laplacian:
            return -adjacency
        laplacian = torch.diag_embed(adjacency.sum(-1)) - adjacency
        if not self.kind.normalized:
            return laplacian
        return laplacian / _stacked(self.degree, starts, sizes)[:, None, :]

    def conjugated(self, blocks: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Turn blocks of a function of S into those of the same function of T."""
        if self.root is None:
            return blocks
        root = _stacked(self.root, starts, sizes)
        return blocks * root[..., None] / root[:, None, :]

    def _interval(self) -> Interval:
        """Find an interval that contains the spectrum: Lanczos' estimate, capped by Gershgorin."""
        sizes = torch.zeros_like(self.degree).index_add_(0, self.matrix.row, self.value.abs())
        bound = float(sizes.max())
        csr = self.matrix.tensor(self.value)
        seen = spectral_interval(lambda x: csr @ x, self.value.new_zeros(len(sizes), 1))
        high = max(min(seen.high, bound), seen.inner_high)
        if self.kind.laplacian:  # each component has the eigenvalue 0
            return Interval(0.0, high, 0.0, seen.inner_high)
        return Interval(max(seen.low, -bound), high, seen.inner_low, seen.inner_high)

    def norm(self, lam: Tensor) -> Tensor:
        """Compute the largest value of exp(-lam s) for s in the interval."""
        return (-lam * self.interval.center + lam.abs() * self.interval.radius).exp()

    def scaled(self, dtype: torch.dtype) -> Tensor:
        """Return (S - center) / radius as a CSR matrix."""
        if dtype not in self._scaled:
            shift = self.interval.center * self.is_diagonal.to(self.value.dtype)
            value = (self.value - shift) / (self.interval.radius or 1.0)
            self._scaled[dtype] = self.matrix.tensor(value.to(dtype))
        return self._scaled[dtype]

    def times(self, x: Tensor, root: Tensor | None) -> Tensor:
        """Multiply R S R^-1 x for x (L, C)."""
        inside = x if root is None else x / root.to(x.dtype)[:, None]
        product = (self.scaled(x.dtype) @ inside[self.order])[self.position]
        product = product if root is None else product * root.to(x.dtype)[:, None]
        return product * self.interval.radius + self.interval.center * x

    def apply(self, x: Tensor, lam: Tensor, tol: float, root: Tensor | None) -> Tensor:
        """Multiply R exp(-lam S) R^-1 x, x (L, H, C) and lam (H,), a slice of columns at a time."""
        spread = 1.0
        if self.root is not None:  # what the two diagonals around S do to an error
            spread = float(self.root.max() / self.root.min())
        terms = coefficients(lam, self.interval, tol / spread)
        norm = self.norm(lam.double())
        if not (norm < torch.finfo(x.dtype).max).all():
            raise ValueError(
                f"exp(-lam T) overflows {x.dtype}: lam is {lam.tolist()}, and T has eigenvalues "
                f"from about {self.interval.inner_low:.4g} to {self.interval.inner_high:.4g}"
            )
        terms = terms * norm[:, None]
        matrix = self.scaled(x.dtype)
        step = max(1, block_width(len(x), x) // x.shape[1])
        scale = None if root is None else root.to(x.dtype)[self.order, None, None]
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        for part, out in zip(x.split(step, -1), result.split(step, -1), strict=True):
            part = part[self.order]
            if scale is None:
                part = expand(matrix, part, terms)
            else:
                part = expand(matrix, part.div_(scale), terms).mul_(scale)
            out.copy_(part[self.position])
        return result

    def dense(self) -> Tensor:
        """Form T, entry by entry from its definition."""
        pattern, weight = self.adjacency
        n = pattern.shape[0]
        adjacency = weight.new_zeros(n, n)
        adjacency[pattern.row, pattern.column] = pattern.in_order(weight)
        if not self.kind.laplacian:
            return -adjacency
        laplacian = torch.diag(adjacency.sum(1)) - adjacency
        return laplacian / self.degree if self.kind.normalized else laplacian
