"""Graph kernels with a closed form or with features: hypercubes, walks, power series (Sec. 4).

Shapes: L nodes, T steps of a walk, C columns; leading dims of the values are heads.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from vit_rpe.masks import Dense, LowRank, Mask, Scaled
from vit_rpe.masks.base import check_columns, check_rows

from .base import GraphMask, as_values
from .csr import block_width
from .edges import as_count, as_graph, as_probability, coalesce, connected_components
from .visits import Features, Visits, dense_features, feature_product
from .walks import Walks


class Hypercube(GraphMask):
    """`exp(-lam L)` on the hypercube of 2^dim nodes (paper, Sec. 4.1). O(L log L) a column.

        M[i, j] = ((1 + e)/2)^(dim - h) ((1 - e)/2)^h,    e = exp(-2 lam),  h = bits that differ

    which is proportional to tanh(lam)^h: a Kronecker product, applied bit by bit.
    """

    tensor_names = ("lam",)

    def __init__(self, dim: int, lam: float | Tensor = 1.0):
        self.dim = as_count(dim, "dim", least=0)
        self.length = 2**dim
        self.lam = as_values(lam, "lam")
        self.absolute = False

    @property
    def lead(self) -> torch.Size:
        return self.lam.shape

    def _factors(self) -> tuple[Tensor, Tensor]:
        """The weights of a bit that agrees and of one that differs."""
        e = torch.expm1(-2 * self.lam)
        return 1 + e / 2, e.abs() / 2 if self.absolute else -e / 2

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        dtype = self.compute_dtype(x.dtype)
        width = block_width(self.length, x)
        result = torch.cat([self._bits(part.to(dtype)) for part in x.split(width, -1)], -1)
        return result.expand(torch.broadcast_shapes(result.shape, (*self.lead, 1, 1))).to(x.dtype)

    def _bits(self, x: Tensor) -> Tensor:
        same, other = (f.to(x.dtype)[..., None, None, None, None] for f in self._factors())
        for bit in range(self.dim):
            pairs = x.unflatten(-2, (-1, 2, 1 << bit))
            x = (same * pairs + other * pairs.flip(-3)).flatten(-4, -2)
        return x

    def dense(self) -> Tensor:
        return self.rows(0, self.length)

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        nodes = torch.arange(self.length, device=self.lam.device)
        different = nodes[start:stop, None] ^ nodes
        bits = sum((different >> bit & 1 for bit in range(self.dim)), torch.zeros_like(different))
        same, other = (f[..., None, None] for f in self._factors())
        return same ** (self.dim - bits) * other**bits

    def cost(self, columns: int) -> float:
        return 4.0 * max(self.dim, 1) * self.length * columns

    def magnitude(self) -> Mask:
        """|M|; only a negative lam makes entries negative."""
        mask = self.with_values(lam=self.lam.detach())
        mask.absolute = True
        return mask


class WalkKernel(GraphMask):
    """The random walks graph-nodes kernel RWGNK of given walks (paper, Sec. 4.2, Eq. (5)).

        M = Psi Psi^T,    Psi[i] = psi[i] / |psi[i]|^alpha,    psi[i, j] = mean sum lam^t

    over the walks from i and the steps t at which they are at j. `lam` (...) is learnable; alpha =
    1 makes it a cosine. The features are sparse: O(visits) a column, in two sparse products.
    `walks` may also be given as the `Visits` that they made, for instance those of a batch of
    graphs.
    """

    tensor_names = ("lam",)

    def __init__(self, walks: Walks | Visits, lam: float | Tensor = 1.0, alpha: float = 1.0):
        if not isinstance(walks, Visits):
            _check_walks(walks, "walks")
        if not isinstance(alpha, int | float) or not alpha >= 0:
            raise ValueError(f"alpha must be a number and not negative, got {alpha!r}")
        self.walks = walks if isinstance(walks, Walks) else None
        self.visits = walks if isinstance(walks, Visits) else Visits.of(walks)
        self.length = self.visits.pattern.shape[0]
        self.lam = as_values(lam, "lam")
        self.alpha = alpha

    @property
    def lead(self) -> torch.Size:
        return self.lam.shape

    def _coefficients(self, dtype: torch.dtype | None = None) -> Tensor:
        steps = torch.arange(self.visits.steps + 1, device=self.lam.device)
        return (self.lam[..., None] ** steps).to(dtype or self.lam.dtype)

    def _features(self, dtype: torch.dtype | None = None) -> Features:
        if self._prepared is not None and self._prepared.values.dtype == dtype:
            return self._prepared
        features = Features(self.visits, self._coefficients(dtype))
        if self.alpha:
            features.scale = self._scale(features.values)
        return features

    def _scale(self, values: Tensor) -> Tensor:
        """1 / |psi[i]|^alpha, (..., L)."""
        ones = torch.ones(self.length, 1, dtype=values.dtype, device=values.device)
        squares = self.visits.pattern.product(values.square(), ones).squeeze(-1)
        return 1 / _power(squares, self.alpha / 2)

    def prepared(self, dtype: torch.dtype) -> Mask:
        """With its features at hand."""
        mask = copy(self)
        mask._prepared = self._features(self.compute_dtype(dtype))
        return mask

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        features = self._features(self.compute_dtype(x.dtype))
        return feature_product(features, features, x)

    def dense(self) -> Tensor:
        if self.walks is None:
            psi = self.visits.rows(self.visits.values(self._coefficients()), 0, self.length)
        else:
            psi = dense_features(self.walks, self._coefficients())
        psi = psi / _power(torch.linalg.vector_norm(psi, dim=-1, keepdim=True), self.alpha)
        return psi @ psi.mT

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        features = self._features()
        return features.read(features.rows(start, stop).mT).mT

    def read(self, x: Tensor) -> Tensor:
        """Psi x, the features of the nodes times a matrix: (L, C) -> (..., L, C)."""
        check_columns(x, self.length)
        return self._features(self.compute_dtype(x.dtype)).read(x)

    def at(self, row: Tensor, column: Tensor) -> Tensor:
        """The entries M[row, column], (..., P) for P pairs of nodes. O(P visits of a node)."""
        return self._features().dots(row, column)

    def low_rank(self) -> LowRank:
        """The same mask, its features as constant sparse factors; for one lam."""
        psi = self.visits.pattern.tensor(self._features().scaled_values().detach())
        return LowRank(psi, psi)

    def components(self) -> Tensor:
        return self.visits.components

    def cost(self, columns: int) -> float:
        return 4.0 * columns * self.visits.pattern.num_entries

    def magnitude(self) -> Mask:
        """The kernel of |lam| under the norms of lam."""
        scale = self._scale(self.visits.values(self._coefficients())).detach()
        bound = self.with_values(lam=self.lam.detach().abs())
        bound.alpha = 0.0
        return Scaled(bound, left=scale, right=scale)


class SeriesKernel(GraphMask):
    """A power series of the adjacency matrix, estimated by walks (graph random features).

        M = Phi Psi^T,    E[Phi] = E[Psi] = f(Adj),    f(A) = sum_t coefficients[..., t] A^t

    so that E[M] = f(Adj)^2 for an undirected graph: every visit counts with the weight of its walk
    over the probability of it (Reid et al. 2023). `walks` and `others` must be drawn with
    different seeds, or the diagonal is biased. The coefficients are learnable and may be negative,
    and so may M; `series_root` finds those of a given f^2. O(visits) a column.
    """

    tensor_names = ("coefficients",)

    def __init__(self, walks: Walks, others: Walks, coefficients: Tensor):
        _check_walks(walks, "walks")
        _check_walks(others, "others")
        if walks.nodes.shape[::2] != others.nodes.shape[::2]:
            raise ValueError(
                "walks and others must have as many nodes and steps, got (nodes, walks, steps + 1) "
                f"{tuple(walks.nodes.shape)} and {tuple(others.nodes.shape)}"
            )
        if torch.equal(walks.nodes, others.nodes) and walks.steps:
            raise ValueError("others must be drawn with another seed than walks, got the same")
        self.walks, self.others = walks, others
        self.length = walks.num_nodes
        self.left, self.right = (Visits.of(w, unbiased=True) for w in (walks, others))
        self.coefficients = as_values(coefficients, "coefficients")
        self.check_shapes()

    def check_shapes(self) -> None:
        steps = self.walks.steps
        if self.coefficients.ndim < 1 or self.coefficients.shape[-1] != steps + 1:
            raise ValueError(
                f"walks of {steps} steps need coefficients of shape (..., {steps + 1}), "
                f"got {tuple(self.coefficients.shape)}"
            )

    @property
    def lead(self) -> torch.Size:
        return self.coefficients.shape[:-1]

    def _features(self, dtype: torch.dtype | None = None) -> tuple[Features, Features]:
        if self._prepared is not None and self._prepared[0].values.dtype == dtype:
            return self._prepared
        coefficients = self.coefficients.to(dtype or self.coefficients.dtype)
        return Features(self.left, coefficients), Features(self.right, coefficients)

    def prepared(self, dtype: torch.dtype) -> Mask:
        """With its features at hand."""
        mask = copy(self)
        mask._prepared = self._features(self.compute_dtype(dtype))
        return mask

    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return feature_product(*self._features(self.compute_dtype(x.dtype)), x)

    def dense(self) -> Tensor:
        left, right = (
            dense_features(walks, self.coefficients, unbiased=True)
            for walks in (self.walks, self.others)
        )
        return left @ right.mT

    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        left, right = self._features()
        return right.read(left.rows(start, stop).mT).mT

    def components(self) -> Tensor:
        """Those of both sets of walks, joined where they overlap."""
        nodes = torch.arange(self.length, device=self.left.components.device).repeat(2)
        met = torch.cat([self.left.components, self.right.components])
        return connected_components(nodes, met, self.length)

    def cost(self, columns: int) -> float:
        return 2.0 * columns * (self.left.pattern.num_entries + self.right.pattern.num_entries)

    def magnitude(self) -> Mask:
        return self.with_values(coefficients=self.coefficients.detach().abs())


def _power(size: Tensor, exponent: float) -> Tensor:
    """size^exponent to divide by; infinity for 0, so that visits that cancel leave an empty row."""
    return size.masked_fill(size == 0, torch.inf) ** exponent


def _check_walks(walks: object, name: str) -> None:
    if not isinstance(walks, Walks):
        raise ValueError(f"{name} must be what random_walks returns, got {type(walks).__name__}")


def series_root(series: Tensor) -> Tensor:
    """Coefficients (..., T + 1) of f with f^2 = sum_k series[k] A^k up to the power T.

    The powers beyond T that f^2 also has are smaller than the series' own tail if that decays
    fast. The first coefficient of the series must be positive. Differentiable.
    """
    series = as_values(series, "series")
    if series.ndim < 1 or not (series[..., 0] > 0).all():
        raise ValueError(
            "series must have shape (..., T + 1) and begin with a positive coefficient, "
            f"got {tuple(series.shape)}"
        )
    root = [series[..., 0].sqrt()]
    for k in range(1, series.shape[-1]):
        cross = sum((root[i] * root[k - i] for i in range(1, k)), torch.zeros_like(root[0]))
        root.append((series[..., k] - cross) / (2 * root[0]))
    return torch.stack(root, -1)


def expected_walk_kernel(
    edge_index: Tensor,
    length: int | None,
    lam: float | Tensor = 1.0,
    alpha: float = 1.0,
    num_nodes: int | None = None,
    *,
    edge_weight: Tensor | None = None,
    stop: float = 0.0,
) -> Dense:
    """What `WalkKernel` tends to with ever more walks, as a matrix: for small graphs. O(L^3).

    E[psi] = sum_t (lam (1 - stop))^t P^t for the transition matrix P, up to `length` steps, or to
    infinity with `length=None`, where lam (1 - stop) must be less than 1.
    """
    num_nodes = as_graph(edge_index, num_nodes, edge_weight, undirected=False)
    as_probability(stop, "stop")
    if length is not None:
        as_count(length, "length", least=0)
    key, weight = coalesce(edge_index, edge_weight, num_nodes)
    step = weight.new_zeros(num_nodes**2).index_put((key,), weight).reshape(num_nodes, num_nodes)
    total = step.sum(1, keepdim=True)
    step = step / total.masked_fill(total == 0, 1.0)
    rate = as_values(lam, "lam")[..., None, None] * (1 - stop)
    eye = torch.eye(num_nodes, dtype=step.dtype, device=step.device)
    if length is None:
        if not (rate.abs() < 1).all():
            raise ValueError(
                f"length=None needs lam (1 - stop) below 1, got {float(rate.detach().abs().max())}"
            )
        psi = torch.linalg.inv(eye - rate * step)
    else:
        psi = eye.expand(*rate.shape[:-2], *eye.shape)
        for _ in range(length):  # Horner's scheme
            psi = eye + rate * (step @ psi)
    psi = psi / _power(torch.linalg.vector_norm(psi, dim=-1, keepdim=True), alpha)
    return Dense(psi @ psi.mT)
