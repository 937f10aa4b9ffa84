"""The kernel of random walks, RWGNK, as a mask (paper, Sec. 4.2).

Shapes: L nodes, T steps of a walk, C columns; leading dims of the values are heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vit_rpe.masks import LowRank, Mask, Scaled
from vit_rpe.masks.helpers import SparseFactor, as_values, check_columns, check_rows
from vit_rpe.precision import full_precision

from ..base import GraphMask
from ..edges import Graph
from .visits import Visits, WalkFeatures, dense_features, feature_product, power_or_inf
from .walks import Walks, check_walks, random_walks


class WalkKernel(GraphMask):
    """The random walks graph-nodes kernel RWGNK of given walks (paper, Sec. 4.2, Eq. (5)).

        M = Psi Psi^T,    Psi[i] = psi[i] / |psi[i]|^alpha,    psi[i, j] = mean sum lam^t

    over the walks from i and the steps t at which they are at j. `lam` (...) is learnable; alpha =
    1 makes it a cosine. The features are sparse: O(visits) a column, in two sparse products.
    `nonnegative` promises that no entry is; a number lam >= 0 says so itself.
    `walks` may also be their `Visits`, for instance those of a batch of graphs.
    """

    tensor_names = ("lam",)

    def __init__(
        self,
        walks: Walks | Visits,
        lam: float | Tensor = 1.0,
        alpha: float = 1.0,
        *,
        nonnegative: bool | None = None,
    ):
        if not isinstance(walks, Visits):
            check_walks(walks, "walks")
        if not isinstance(alpha, int | float) or not alpha >= 0:
            raise ValueError(f"alpha must be a number and not negative, got {alpha!r}")
        self.walks = walks if isinstance(walks, Walks) else None
        self.visits = walks if isinstance(walks, Visits) else Visits.of(walks)
        self.length = self.visits.pattern.shape[0]
        self.lam = as_values(lam, "lam")
        self.alpha = alpha
        self._promise = nonnegative
        self.nonnegative = bool(nonnegative)
        if nonnegative is None and isinstance(lam, int | float):
            self.nonnegative = lam >= 0
        self._factors: dict[torch.dtype, SparseFactor] = {}

    @property
    def batch_shape(self) -> torch.Size:
        return self.lam.shape

    def forget(self) -> None:
        super().forget()
        self.nonnegative = bool(self._promise)
        self._factors = {}

    def known_parts(self) -> Mask:
        return self if self.part_sizes is not None else self.in_parts(self.visits.parts)

    @property
    def has_sparse_factor(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether lam is one number without a gradient; features are then computed once."""
        fixed = self.lam.ndim == 0 and not self.lam.requires_grad
        return fixed and self.visits.pattern.column.dtype == torch.int32

    def sparse_factor(self, dtype: torch.dtype) -> SparseFactor:
        if dtype not in self._factors:
            pattern, values = self.visits.pattern, self._features(dtype).scaled_values()
            self._factors[dtype] = SparseFactor(pattern, values, pattern.transposed(values))
        return self._factors[dtype]

    @full_precision
    def diagonal_blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        psi = self._features().blocks(starts, sizes)
        return psi @ psi.mT

    def _coefficients(self, dtype: torch.dtype | None = None) -> Tensor:
        steps = torch.arange(self.visits.steps + 1, device=self.lam.device)
        return (self.lam[..., None] ** steps).to(dtype or self.lam.dtype)

    def _features(self, dtype: torch.dtype | None = None) -> WalkFeatures:
        if self._precomputed is not None and self._precomputed.values.dtype == dtype:
            return self._precomputed
        features = WalkFeatures(self.visits, self._coefficients(dtype))
        if self.alpha:
            features.scale = self._scale(features.values)
        return features

    def _scale(self, values: Tensor) -> Tensor:
        """Compute 1 / |psi[i]|^alpha, (..., L)."""
        ones = torch.ones(self.length, 1, dtype=values.dtype, device=values.device)
        squares = self.visits.pattern.product(values.square(), ones).squeeze(-1)
        return 1 / power_or_inf(squares, self.alpha / 2)

    def precomputed(self, dtype: torch.dtype) -> Mask:
        """Return the same mask with its features computed."""
        mask = copy(self)
        mask._precomputed = self._features(self.compute_dtype(dtype))
        return mask

    @full_precision
    def matmul(self, x: Tensor) -> Tensor:
        check_columns(x, self.length)
        features = self._features(self.compute_dtype(x.dtype))
        return feature_product(features, features, x)

    @full_precision
    def dense(self) -> Tensor:
        if self.walks is None:
            psi = self.visits.rows(self.visits.values(self._coefficients()), 0, self.length)
        else:
            psi = dense_features(self.walks, self._coefficients())
        psi = psi / power_or_inf(torch.linalg.vector_norm(psi, dim=-1, keepdim=True), self.alpha)
        return psi @ psi.mT

    @full_precision
    def rows(self, start: int, stop: int) -> Tensor:
        check_rows(start, stop, self.length)
        features = self._features()
        return features.read(features.rows(start, stop).mT).mT

    def read(self, x: Tensor) -> Tensor:
        """Multiply Psi x, the features of the nodes times a matrix: (L, C) -> (..., L, C)."""
        check_columns(x, self.length)
        return self._features(self.compute_dtype(x.dtype)).read(x)

    def at(self, row: Tensor, column: Tensor) -> Tensor:
        """Compute M[row, column], (..., P) for P pairs of nodes. O(P visits of a node)."""
        return self._features().dots(row, column)

    def low_rank(self) -> LowRank:
        """Return the same mask with its features as constant sparse factors; for one lam."""
        psi = self.visits.pattern.tensor(self._features().scaled_values().detach())
        return LowRank(psi, psi)

    def components(self) -> Tensor:
        return self.visits.components

    def cost(self, columns: int) -> float:
        return 4.0 * columns * self.visits.pattern.num_entries

    def abs_bound(self) -> Mask:
        """The kernel of |lam| under the norms of lam."""
        scale = self._scale(self.visits.values(self._coefficients())).detach()
        bound = copy(self)
        bound.lam, bound.alpha = self.lam.detach().abs(), 0.0
        bound.forget()
        return Scaled(bound, left=scale, right=scale)


@dataclass(frozen=True)
class RWGNK:
    """A maker of the paper's mask, RWGNK: `RWGNK(...)(edge_index, edge_weight)`.

    The same seed gives the same walks on the same graph. A layer in training uses `redrawn()` in
    each forward pass.
    """

    num_walks: int = 20
    num_steps: int = 3
    lam: float = 1.0
    alpha: float = 1.0
    seed: int = 0

    def __call__(
        self,
        edge_index: Tensor | Graph,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
    ) -> WalkKernel:
        walks = random_walks(
            edge_index, edge_weight, num_nodes=num_nodes,
            num_walks=self.num_walks, num_steps=self.num_steps, seed=self.seed,
        )  # fmt: skip
        return WalkKernel(walks, self.lam, self.alpha, nonnegative=self.lam >= 0)

    def redrawn(self, generator: torch.Generator | None = None) -> RWGNK:
        """Return the same maker with a new seed, by default from torch's generator."""
        return replace(self, seed=int(torch.randint(2**62, (), generator=generator)))
