"""What a feature map is: phi with K(q, k) = phi(q) . phi(k)."""

from __future__ import annotations

import abc

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureMap(nn.Module, abc.ABC):
    """Maps queries and keys of head dimension d to M features, in float32 or better.

    `phi_q, phi_k = features(q, k)`, each (..., L, d) -> (..., L, M).

    With `unit_norm` queries and keys are first brought to length 1.
    """

    nonnegative: bool = True
    """Whether no feature is ever negative; attention then knows a row's absolute sum for free."""

    wide_range: bool = True
    """Whether features of one key may be smaller than another's by more than float32 has digits.
    Attention is then careful: products that mix all keys, as transforms do, would lose the small
    ones."""

    def __init__(self, unit_norm: bool = False):
        super().__init__()
        self.unit_norm = unit_norm

    @abc.abstractmethod
    def num_features(self, head_dim: int) -> int:
        """M for heads of `head_dim` channels."""

    @abc.abstractmethod
    def query(self, q: Tensor) -> Tensor:
        """phi(q)."""

    @abc.abstractmethod
    def key(self, k: Tensor, keep: Tensor | None = None) -> Tensor:
        """phi(k). Keys that `keep` (boolean, (..., L)) rules out influence no other key."""

    def scaled_key(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """phi(k), and the logarithm of what all keys of a head were divided by, (..., 1, 1).

        None: by nothing. Keys that come in parts are brought to one scale by it.
        """
        return self.key(k), None

    def forward(self, q: Tensor, k: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.query(self.prepare(q)), self.key(self.prepare(k), keep)

    def prepare(self, x: Tensor) -> Tensor:
        """To float32 at least (features overflow in float16), and to unit length if asked for."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.normalize(x, dim=-1) if self.unit_norm else x

    def extra_repr(self) -> str:
        return "unit_norm=True" if self.unit_norm else ""
