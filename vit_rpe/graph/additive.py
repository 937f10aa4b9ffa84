"""The additive kernel of graph attention networks, as a feature map."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.features import FeatureMap


class AdditiveFeatures(FeatureMap):
    """`K(s, t) = exp(z) + exp(slope z)` for z = s + t: two features, exactly.

    GAT's weight is exp(LeakyReLU(z)) = max(exp(z), exp(slope z)), which no few features give; the
    sum of the two lies between it and twice it. s and t are (..., L, 1).

    The largest exponent is subtracted, for each query and for all keys of a head together.
    """

    def __init__(self, slope: float = 0.2):
        super().__init__()
        self.slope = slope

    def num_features(self, head_dim: int) -> int:
        return 2

    def query(self, q: Tensor) -> Tensor:
        exponents = self._exponents(q)
        return (exponents - exponents.detach().amax(-1, keepdim=True)).exp()

    def key(self, k: Tensor, keep: Tensor | None = None) -> Tensor:
        exponents = self._exponents(k)
        if keep is not None:
            exponents = exponents.masked_fill(~keep[..., None], -torch.inf)
        largest = exponents.detach().amax((-2, -1), keepdim=True)
        return (exponents - largest.clamp(min=torch.finfo(largest.dtype).min)).exp()

    def _exponents(self, x: Tensor) -> Tensor:
        if x.shape[-1] != 1:
            raise ValueError(f"additive features need one number a node, got {x.shape[-1]}")
        return torch.cat([x, self.slope * x], -1)
