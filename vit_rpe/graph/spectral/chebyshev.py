"""The action of exp(-lam T) for a symmetric T, by Chebyshev expansion of sparse products.

    exp(-lam (c + r t)) = exp(-lam c + |lam| r) sum_k  s_k I~_k(|lam| r) T_k(t),   -1 <= t <= 1

for the interval [c - r, c + r] that holds the spectrum of T; I~_k(z) = exp(-z) I_k(z) are scaled
Bessel functions, s_k = 2 (-sign lam)^k and s_0 = 1. The scaled terms add up to at most 1, so that
what is cut off is known relative to the largest value on the interval, the norm of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, isfinite, sqrt

import torch
from torch import Tensor

_LANCZOS = 30  # steps
_MARGIN = 0.01  # of the width, added for what Lanczos has not seen


@dataclass(frozen=True)
class Interval:
    """A range of eigenvalues: none lies outside `low` to `high`, some reach the inner ends."""

    low: float
    high: float
    inner_low: float
    inner_high: float

    @property
    def center(self) -> float:
        return (self.low + self.high) / 2

    @property
    def radius(self) -> float:
        return (self.high - self.low) / 2

    def slack(self, lam: float) -> float:
        """Bound the logarithm of how much larger exp(-lam s) is beyond the spectrum."""
        return (
            lam * (self.inner_low - self.low) if lam > 0 else -lam * (self.high - self.inner_high)
        )


def scaled_bessel(z: float) -> list[float]:
    """Compute exp(-z) I_k(z) for k = 0, 1, ... until they are far below round-off; z >= 0.

    It uses the recurrence I_{k-1} = I_{k+1} + (2 k / z) I_k, downwards, where it is stable, and
    the sum I_0 + 2 I_1 + 2 I_2 + ... = exp(z).
    """
    if z < 1e-12:
        return [1.0, z / 2]
    terms = [0.0, 1.0]
    for k in range(ceil(sqrt(120 * z)) + 20, 0, -1):
        terms.append(terms[-2] + 2 * k / z * terms[-1])
    terms.reverse()
    total = terms[0] + 2 * sum(terms[1:])
    return [term / total for term in terms]


def coefficients(lam: Tensor, interval: Interval, tol: float) -> Tensor:
    """Compute the scaled terms s_k I~_k for every lam (H,), (H, K).

    The remainder is at most `tol` times the norm of exp(-lam T).
    """
    rows = []
    for value in lam.tolist():
        if not isfinite(value):
            raise ValueError(f"lam must be finite, got {value}")
        terms = scaled_bessel(abs(value) * interval.radius)
        allowed = tol * exp(-min(interval.slack(value), 700.0))
        rest, keep = 0.0, len(terms)
        while keep > 1 and rest + 2 * terms[keep - 1] <= allowed:
            keep -= 1
            rest += 2 * terms[keep]
        sign = -1.0 if value > 0 else 1.0
        rows.append([terms[0], *(2 * sign**k * terms[k] for k in range(1, keep))])
    width = max(map(len, rows))
    padded = [row + [0.0] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.float64, device=lam.device)


def expand(matrix: Tensor, x: Tensor, terms: Tensor) -> Tensor:
    """Compute sum_k terms[h, k] T_k(matrix) x, x (L, H, C), for a sparse matrix within [-1, 1]."""
    terms = terms.to(x.dtype)
    result = terms[:, 0, None] * x
    if terms.shape[1] == 1:
        return result
    before = x.flatten(1).clone(memory_format=torch.contiguous_format)
    here = matrix @ before
    result.addcmul_(here.view_as(x), terms[:, 1, None])
    for k in range(2, terms.shape[1]):
        # in place: a new tensor would push the others out of the cache
        before, here = here, before.addmm_(matrix, here, beta=-1.0, alpha=2.0)
        result.addcmul_(here.view_as(x), terms[:, k, None])
    return result


def spectral_interval(product: Callable[[Tensor], Tensor], like: Tensor) -> Interval:
    """Find the interval of a symmetric matrix by some Lanczos steps; `like` is a column (L, 1).

    Its ends are the extreme Ritz values, which lie within the spectrum, widened by their residuals
    and a margin.
    """
    seed = torch.Generator(like.device).manual_seed(0)
    q = torch.randn(like.shape, generator=seed, dtype=like.dtype, device=like.device)
    basis, diagonal, off_diagonal = [q / q.norm()], [], []
    for _ in range(min(_LANCZOS, len(like))):
        w = product(basis[-1])
        diagonal.append(float((w * basis[-1]).sum()))
        for _ in range(2):  # once more, against round-off
            for v in basis:
                w = w - (w * v).sum() * v
        off_diagonal.append(float(w.norm()))
        if off_diagonal[-1] <= 1e-12 * max(map(abs, diagonal + off_diagonal)):
            break
        basis.append(w / w.norm())
    ritz, vectors = _tridiagonal(diagonal, off_diagonal[:-1])
    residual = off_diagonal[-1] * vectors[-1].abs()
    margin = _MARGIN * float(ritz[-1] - ritz[0])
    low, high = float(ritz[0]), float(ritz[-1])
    below, above = float(residual[0]) + margin, float(residual[-1]) + margin
    return Interval(low - below, high + above, low, high)


def _tridiagonal(diagonal: list[float], off_diagonal: list[float]) -> tuple[Tensor, Tensor]:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for k, value in enumerate(off_diagonal):
        matrix[k, k + 1] = matrix[k + 1, k] = value
    return torch.linalg.eigh(matrix)
