"""The additive kernel of graph attention networks, as a feature map."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vit_rpe.precision import to_float64

from .base import FeatureMap
from .parts import largest_of_parts

_RANGE = 60.0  # of exponents in float32; leaves room for the weights of masks and values


class AdditiveFeatures(FeatureMap):
    """The kernel `K(s, t) = exp(z) + exp(slope z)` for z = s + t, by two features, exactly.

    GAT's weight is exp(LeakyReLU(z)) = max(exp(z), exp(slope z)), which no few features give; the
    sum of the two lies between it and twice it. s and t are (..., L, 1).

    The largest exponent is subtracted, for each query and for all keys of a head together.
    """

    def __init__(self, slope: float = 0.2):
        super().__init__()
        self.slope = slope

    def num_features(self, head_dim: int) -> int:
        return 2

    def leveled(
        self, q: Tensor, k: Tensor, components: Callable[[], Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        """Shift queries and keys so that the largest key is 0; the kernel stays the same.

        Only s + t counts, so a number may move from the keys to the queries. Where float32 cannot
        hold all keys at one scale, every component of the mask (`components()` returns them, (L,),
        or None) has its own number, and no graph of a batch makes another one underflow. If that is
        not enough, for keys of one component, they become float64, which holds a range of about
        600.
        """
        q, k = self.cast_and_normalize(q), self.cast_and_normalize(k)
        seen = k.detach()
        largest = seen.amax(-2, keepdim=True)
        if _too_wide(largest - seen):
            if (part := components()) is not None:
                largest = largest_of_parts(seen, part.to(k.device))
            if _too_wide(largest - seen):
                q, k = to_float64(q), to_float64(k)
        return q + largest, k - largest

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


def _too_wide(below: Tensor) -> bool:
    """Tell whether float32 would lose some of these distances below the largest exponent."""
    return below.dtype == torch.float32 and bool(below.amax() > _RANGE)
