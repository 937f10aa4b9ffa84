"""The feature map of the authors' TopViT."""

from __future__ import annotations

from torch import Tensor

from .elementwise import ReLUFeatures


class TopViTFeatures(ReLUFeatures):
    """The maps relu(q / sqrt d) + 1e-8 and relu(k) + 1e-8 of the authors' TopViT."""

    exact = False

    def query(self, q: Tensor) -> Tensor:
        return super().query(q * q.shape[-1] ** -0.5) + 1e-8

    def key(self, k: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().query(k) + 1e-8
