"""The base class of feature maps phi, with K(q, k) = phi(q) . phi(k)."""

from __future__ import annotations

import abc

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureMap(nn.Module, abc.ABC):
    """A map of queries and keys of head dimension d to M features, in float32 or better.

    `phi_q, phi_k = features(q, k)`, each (..., L, d) -> (..., L, M).

    With `unit_norm` queries and keys are first scaled to length 1.
    """

    nonnegative: bool = True
    """Whether no feature is ever negative; the absolute sum of a row is then its sum."""

    wide_range: bool = True
    """Whether features of one key may be smaller than another's by more digits than float32 has.
    Products that mix all keys, as transforms do, would lose the small ones; attention avoids it."""

    exact: bool = False
    """Whether a feature is a channel's own number or 0, so that no precision rounds it: such a map
    leaves q and k in the precision that they have."""

    def __init__(self, unit_norm: bool = False):
        super().__init__()
        self.unit_norm = unit_norm

    @abc.abstractmethod
    def num_features(self, head_dim: int) -> int:
        """Return M for heads of `head_dim` channels."""

    @abc.abstractmethod
    def query(self, q: Tensor) -> Tensor:
        """Map queries to phi(q)."""

    @abc.abstractmethod
    def key(self, k: Tensor, keep: Tensor | None = None) -> Tensor:
        """Map keys to phi(k). Keys that `keep` (boolean, (..., L)) rules out influence no other."""

    def scaled_key(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map keys to phi(k), and return the logarithm of their scale, (..., 1, 1).

        All keys of a head are divided by the scale; None stands for 1. Keys that come in parts are
        brought to one scale by it.
        """
        return self.key(k), None

    def forward(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.query(self.cast_and_normalize(q)), self.key(self.cast_and_normalize(k), keep)

    def cast_and_normalize(self, x: Tensor) -> Tensor:
        """Cast to float32 at least (features overflow in float16); normalize if `unit_norm`."""
        if self.exact and not self.unit_norm:
            return x
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.normalize(x, dim=-1) if self.unit_norm else x

    def extra_repr(self) -> str:
        return "unit_norm=True" if self.unit_norm else ""
