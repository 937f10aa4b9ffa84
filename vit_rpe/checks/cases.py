"""Calls that the fused kernels are checked with: masks, sizes, feature maps, precisions.

Shapes: B samples, H heads, L tokens, M features, D channels of v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from vit_rpe.attention import masked_linear_attention, masked_softmax_attention
from vit_rpe.features import ELUFeatures, FeatureMap, ReLUFeatures, SquareFeatures
from vit_rpe.masks import Bordered, Exponential, Mask, Scaled, Toeplitz

Tokens = tuple[Tensor, Tensor, Tensor]

MAPS: dict[str, Callable[[], FeatureMap]] = {
    "relu": ReLUFeatures,
    "elu": ELUFeatures,
    "square": SquareFeatures,
}


@dataclass(frozen=True)
class Case:
    """One call; `features` is a name in MAPS, or "softmax".

    Attributes:
        weights: "toeplitz" or "exponential".
        border: "ones" or "learned", for prefix tokens.
        shared: all heads have one table.
        hidden: some keys are hidden.
    """

    grid: tuple[int, ...]
    features: str = "relu"
    prefix: int = 0
    border: str = "ones"
    weights: str = "toeplitz"
    batch: int = 2
    heads: int = 3
    m: int = 64
    d: int = 64
    signed: bool = False
    floor: float = 0.0
    shared: bool = False
    hidden: bool = False

    @property
    def length(self) -> int:
        return self.prefix + prod(self.grid)

    @property
    def name(self) -> str:
        words = [self.features, "x".join(map(str, self.grid))]
        words += [f"{self.prefix} prefix tokens, border {self.border}"] if self.prefix else []
        words += [self.weights] if self.weights != "toeplitz" else []
        words += [f"M {self.m}, D {self.d}"] if (self.m, self.d) != (64, 64) else []
        flags = {"signed": self.signed, "one table": self.shared, "hidden keys": self.hidden}
        words += [word for word, on in flags.items() if on]
        words += [f"floor {self.floor}"] if self.floor else []
        return ", ".join(words)

    def tokens(self) -> Tokens:
        """q, k and v, (B, H, L, channels), with some empty rows for relu."""
        lead = (self.batch, self.heads, self.length)
        q, k = torch.randn(2, *lead, self.m, dtype=torch.float64)
        v = torch.randn(*lead, self.d, dtype=torch.float64)
        q[0, 0, 1] = -1.0
        return q, k, v

    def parameters(self) -> list[Tensor]:
        """The tensors of the mask: a table or rates and weights, and a border."""
        heads = () if self.shared else (self.heads,)

        def weights(*shape: int) -> Tensor:
            x = torch.rand(*heads, *shape, dtype=torch.float64) + 0.05
            return x - 0.4 if self.signed else x

        if self.weights == "exponential":
            own = [weights(2, len(self.grid)).abs(), weights(2)]
        else:
            own = [weights(*(2 * n - 1 for n in self.grid))]
        p = self.prefix
        return own + ([weights(p), weights(p), weights(p, p)] if self.border == "learned" else [])

    def mask(self, parameters: list[Tensor]) -> Mask:
        """The mask of these parameters."""
        positive = not self.signed
        if self.weights == "exponential":
            rates, weights, *border = parameters
            mask: Mask = Exponential(rates, weights, self.grid, nonnegative=positive)
        else:
            offsets, *border = parameters
            mask = Toeplitz(offsets, self.grid, nonnegative=positive)
        if self.prefix:
            mask = Bordered(mask, self.prefix, *border, nonnegative=positive)
        if self.hidden:
            keep = torch.arange(self.length, device=parameters[0].device) % 7 != 3
            mask = Scaled(mask, right=keep.expand(self.batch, 1, -1))
        return mask

    def attend(self, tokens: Tokens, mask: Mask) -> Tensor:
        """The call."""
        if self.features == "softmax":
            return masked_softmax_attention(*tokens, mask)
        options: dict[str, Any] = {"features": self.feature_map(), "floor": self.floor}
        return masked_linear_attention(*tokens, mask, wide_range=False, **options)

    def define(self, tokens: Tokens, mask: Mask) -> Tensor:
        """Attend as one writes it in torch, in the precision of the tokens, by whole matrices.

        Products have the precision of q, sums and quotients float32 or better.
        """
        q, k, v = tokens
        weights = mask.dense()
        if self.features == "softmax":
            seen = (weights != 0).expand(*q.shape[:-1], -1)
            logits = (q @ k.mT) * self.m**-0.5 + weights.where(weights != 0, 1.0).log()
            shares = logits.masked_fill(~seen, -torch.inf).softmax(-1)
            return shares.to(q.dtype) @ v
        phi = self.feature_map()
        if phi is not None:
            q, k = (x.to(v.dtype) for x in phi(q, k))
        shares = weights * (q @ k.mT) + self.floor
        total = shares.sum(-1, keepdim=True)
        empty = total.abs() <= torch.finfo(total.dtype).eps * shares.abs().sum(-1, keepdim=True)
        return (shares.to(v.dtype) @ v / total.masked_fill(empty, torch.inf)).to(v.dtype)

    def feature_map(self) -> FeatureMap | None:
        return MAPS[self.features]() if self.features in MAPS else None


SMALL = [
    Case((4, 5), prefix=1, m=16, d=16),
    Case((7, 9), m=24, d=40, border="ones"),
    Case((4, 5), "softmax", prefix=2, border="learned", m=16, d=24),
    Case((5, 4), "elu", weights="exponential", m=16, d=16),
    Case((4, 5), "square", prefix=1, border="learned", floor=0.5, m=16, d=16),
    Case((3, 4), "none", signed=True, prefix=1, border="learned", m=16, d=16),
    Case((5, 4), "softmax", hidden=True, shared=True, m=16, d=16),
]
"""Cases that take a second each interpreted."""

FULL = [
    *(Case((14, 14), f, p) for f in ("relu", "softmax") for p in (0, 1)),
    *(Case((7, 9), f, m=w, d=w) for f in ("relu", "softmax") for w in (16, 32, 128)),
    *(Case((10, 10), f, 2, "learned", m=48, d=80) for f in ("relu", "softmax")),
    *(Case((14, 14), f) for f in ("elu", "square")),
    *(Case((28, 28), f, 1, batch=3) for f in ("relu", "softmax")),
    *(Case((4, 7, 7), f, 1, "learned") for f in ("relu", "softmax")),
    *(Case((500,), f, batch=1) for f in ("relu", "softmax")),
    *(Case((14, 14), f, weights="exponential") for f in ("relu", "softmax")),
    *(Case((14, 14), f, shared=True, hidden=True) for f in ("relu", "softmax")),
    Case((14, 14), "none", signed=True),
    Case((14, 14), "relu", 1, floor=0.5),
    *(Case((56, 56), f, batch=1, heads=2) for f in ("relu", "softmax")),
]
"""Cases for a GPU: each kernel and option, odd sizes, several tiles."""
