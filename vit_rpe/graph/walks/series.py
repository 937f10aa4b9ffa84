"""Power series of the adjacency matrix, estimated by walks (graph random features)."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from vit_rpe.masks import Mask
from vit_rpe.masks.helpers import as_values, check_columns, check_rows
from vit_rpe.precision import full_precision

from ..base import GraphMask
from ..edges import connected_components
from .visits import Visits, WalkFeatures, dense_features, feature_product
from .walks import Walks, check_walks


class SeriesKernel(GraphMask):
    """A power series of the adjacency matrix, estimated by walks (graph random features).

        M = Phi Psi^T,    E[Phi] = E[Psi] = f(Adj),    f(A) = sum_t coefficients[..., t] A^t

    so that E[M] = f(Adj)^2 for an undirected graph: every visit counts with the weight of its walk
    over the probability of it (Reid et al. 2023). `walks` and `others` must be drawn with
    different seeds, or the diagonal is biased. The coefficients are learnable and may be negative,
    and so may M; `series_root` finds those of a given f^2. O(visits) a column.
    """

    tensor_names = ("coefficients",)

    def __init__(
        self, walks: Walks, others: Walks, coefficients: Tensor, *, nonnegative: bool = False
    ):
        check_walks(walks, "walks")
        check_walks(others, "others")
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
        self.nonnegative = nonnegative
        self.check_shapes()

    def check_shapes(self) -> None:
        steps = self.walks.steps
        if self.coefficients.ndim < 1 or self.coefficients.shape[-1] != steps + 1:
            raise ValueError(
                f"walks of {steps} steps need coefficients of shape (..., {steps + 1}), "
                f"got {tuple(self.coefficients.shape)}"
            )

    @property
    def batch_shape(self) -> torch.Size:
        return self.coefficients.shape[:-1]

    def _features(self, dtype: torch.dtype | None = None) -> tuple[WalkFeatures, WalkFeatures]:
        if self._precomputed is not None and self._precomputed[0].values.dtype == dtype:
            return self._precomputed
        coefficients = self.coefficients.to(dtype or self.coefficients.dtype)
        return WalkFeatures(self.left, coefficients), WalkFeatures(self.right, coefficients)

    def precomputed(self, dtype: torch.dtype) -> Mask:
        """Return the same mask with its features computed."""
        mask = copy(self)
        mask._precomputed = self._features(self.compute_dtype(dtype))
        return mask

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        return feature_product(*self._features(self.compute_dtype(x.dtype)), x)

    @full_precision
    def dense(self) -> Tensor:
        left, right = (
            dense_features(walks, self.coefficients, unbiased=True)
            for walks in (self.walks, self.others)
        )
        return left @ right.mT

    @full_precision
    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        left, right = self._features()
        return right.read(left.rows(start, stop).mT).mT

    def components(self) -> Tensor:
        """The components of both sets of walks, joined where they overlap."""
        nodes = torch.arange(self.length, device=self.left.components.device).repeat(2)
        met = torch.cat([self.left.components, self.right.components])
        return connected_components(nodes, met, self.length)

    def cost(self, columns: int) -> float:
        return 2.0 * columns * (self.left.pattern.num_entries + self.right.pattern.num_entries)

    def abs_bound(self) -> Mask:
        return self.with_values(coefficients=self.coefficients.detach().abs())


def series_root(series: Tensor) -> Tensor:
    """Find coefficients (..., T + 1) of f with f^2 = sum_k series[k] A^k up to the power T.

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
