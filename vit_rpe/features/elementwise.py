"""Feature maps that act on each channel separately: M = d."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, bfloat16

from .base import FeatureMap


class ElementwiseFeatures(FeatureMap):
    """A function for queries and keys, channel by channel."""

    wide_range = False

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def key(self, k: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.query(k)


class ReLUFeatures(ElementwiseFeatures):
    """The map max(x, 0)."""

    exact = True

    def query(self, q: Tensor) -> Tensor:
        return F.relu(_in_rows(q))


class ELUFeatures(ElementwiseFeatures):
    """The map ELU(x) + 1, positive everywhere."""

    def query(self, q: Tensor) -> Tensor:
        return F.elu(_in_rows(q)) + 1.0


class SquareFeatures(ElementwiseFeatures):
    """The map x^2."""

    def query(self, q: Tensor) -> Tensor:
        return q.square()


def _in_rows(x: Tensor) -> Tensor:
    """Copy x where that is faster.

    On a CPU the backward passes of ReLU and ELU go through bfloat16 that is not contiguous (heads
    of a projection) entry by entry, ten times slower.
    """
    return x.contiguous() if x.device.type == "cpu" and x.dtype == bfloat16 else x
