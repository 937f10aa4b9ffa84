"""Positive random features for the softmax kernel (FAVOR+; Choromanski et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.precision import without_autocast

from .base import FeatureMap
from .orthogonal import orthogonal_gaussian
from .parts import largest_of_parts


class PositiveRandomFeatures(FeatureMap):
    """An unbiased estimate of exp(q . k / sqrt d) by M positive features, of variance O(1/M).

        phi(x)_i = exp(w_i . x' - |x'|^2 / 2) / sqrt(M),    x' = x / d^(1/4),   w_i Gaussian

    The largest exponent is subtracted, for each query and for all keys of a head together:
    attention does not change, because it divides by the row's sum. The estimate itself is known up
    to these factors. `stabilize=False` leaves them out.

    With `unit_norm` the kernel is exp(q . k) of unit vectors (Luo et al. 2021): no d^(1/4).
    """

    projection: Tensor

    def __init__(
        self,
        head_dim: int,
        num_features: int | None = None,
        unit_norm: bool = False,
        stabilize: bool = True,
        device: torch.device | str | None = None,
    ):
        super().__init__(unit_norm)
        self.head_dim = head_dim
        self.stabilize = stabilize
        self._features = head_dim if num_features is None else num_features
        directions = self._directions(self._features)
        self.scale = 1.0 if unit_norm else head_dim**-0.25
        self.register_buffer("projection", torch.empty(directions, head_dim, device=device))
        self.reset_parameters()

    def _directions(self, num_features: int) -> int:
        if num_features < 1:
            raise ValueError(f"random features need at least 1 feature, got {num_features}")
        return num_features

    def num_features(self, head_dim: int) -> int:
        return self._features

    def reset_parameters(self) -> None:
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new random directions. They are part of the state dict and change only here."""
        if not self.projection.is_meta:
            self.projection.copy_(orthogonal_gaussian(*self.projection.shape, generator=generator))

    def query(self, q: Tensor) -> Tensor:
        exponents = self._exponents(q)
        return self._exp(exponents, exponents.detach().amax(-1, keepdim=True))

    def key(self, k: Tensor, keep: Tensor | None = None, parts: Tensor | None = None) -> Tensor:
        """Map keys to phi(k), with one scale for each of the `parts`, (L,), if they are given.

        Tokens of different parts do not see each other, so that the largest exponent of a part
        cancels as that of all keys does.
        """
        exponents = self._exponents(k)
        if keep is not None:
            exponents = exponents.masked_fill(~keep[..., None], -torch.inf)
        if parts is None:
            return self._exp(exponents, _largest(exponents))
        largest = largest_of_parts(exponents.detach().amax(-1, keepdim=True), parts)
        return self._exp(exponents, largest.clamp(min=torch.finfo(largest.dtype).min))

    def scaled_key(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        exponents = self._exponents(k)
        largest = _largest(exponents)
        return self._exp(exponents, largest), largest if self.stabilize else None

    def _exponents(self, x: Tensor) -> Tensor:
        x = x * self.scale
        with without_autocast(x.device.type):
            along = x @ self.projection.to(x.dtype).T
        return along - x.square().sum(-1, keepdim=True) / 2

    def _exp(self, exponents: Tensor, largest: Tensor) -> Tensor:
        if self.stabilize:
            exponents = exponents - largest
        return exponents.exp() * self._features**-0.5

    def extra_repr(self) -> str:
        base = super().extra_repr()
        return f"head_dim={self.head_dim}, num_features={self._features}" + (
            f", {base}" if base else ""
        )


def _largest(exponents: Tensor) -> Tensor:
    """Find the largest exponent of all keys of a head, (..., 1, 1); finite, even without keys."""
    largest = exponents.detach().amax((-2, -1), keepdim=True)
    return largest.clamp(min=torch.finfo(largest.dtype).min)


class HyperbolicRandomFeatures(PositiveRandomFeatures):
    """Positive random features with both signs of each direction: exp(w . x') and exp(-w . x')."""

    def _directions(self, num_features: int) -> int:
        if num_features < 2 or num_features % 2:
            raise ValueError(
                f"hyperbolic features need an even number of features, got {num_features}"
            )
        return num_features // 2

    def _exponents(self, x: Tensor) -> Tensor:
        x = x * self.scale
        with without_autocast(x.device.type):
            along = x @ self.projection.to(x.dtype).T
        return torch.cat([along, -along], -1) - x.square().sum(-1, keepdim=True) / 2
