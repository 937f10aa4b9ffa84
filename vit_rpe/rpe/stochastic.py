"""Stochastic relative positions, and masks of low rank from logits of low rank (Sec. 3.4).

Shapes: L tokens, K sines, R realizations, M random features; leading dims are heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.features import PositiveRandomFeatures
from vit_rpe.masks import LowRank
from vit_rpe.masks.helpers import as_count, as_values


def sine_factors(
    length: int, frequencies: Tensor, phases: Tensor, gains: Tensor
) -> tuple[Tensor, Tensor]:
    """Make factors q, k (..., L, 2 K) of K sines of the offset (sine SPE, Liutkus et al. 2021).

        (q k^T)[i, j] = sum_k gains[k]^2 cos(2 pi frequencies[k] (i - j) + phases[k])

    All three are (..., K); a phase makes left and right differ.
    """
    as_count(length, "length", least=1)
    if not frequencies.shape[-1:] == phases.shape[-1:] == gains.shape[-1:]:
        raise ValueError(
            "frequencies, phases and gains must have one shape (..., sines), got "
            f"{tuple(frequencies.shape)}, {tuple(phases.shape)} and {tuple(gains.shape)}"
        )
    position = torch.arange(length, dtype=frequencies.dtype, device=frequencies.device)[:, None]
    angle = 2 * torch.pi * position * frequencies[..., None, :]
    shifted, gain = angle + phases[..., None, :], gains[..., None, :]
    q = torch.cat([gain * shifted.cos(), gain * shifted.sin()], -1)
    k = torch.cat([gain * angle.cos(), gain * angle.sin()], -1)
    return q, k


def stochastic_factors(
    q: Tensor, k: Tensor, realizations: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw random factors (..., L, R) whose product is q k^T on average: stochastic RPE.

    Both are multiplied by one Gaussian matrix, so that E[q Z Z^T k^T] = q k^T.
    """
    as_count(realizations, "realizations", least=1)
    generator = torch.Generator(q.device).manual_seed(seed)
    noise = torch.randn(
        q.shape[-1], realizations, generator=generator, dtype=q.dtype, device=q.device
    )
    noise = noise * realizations**-0.5
    return q @ noise, k @ noise


def low_rank_logits(u: Tensor, v: Tensor, num_features: int, seed: int = 0) -> LowRank:
    """Make the mask `M = exp(u v^T)` of logits of low rank, of rank `num_features`. O(L) a column.

    u and v are (..., L, r). Positive random features of the softmax kernel estimate it: unbiased,
    with an error that falls as 1 / sqrt(num_features), and never negative.
    """
    u, v = as_values(u, "u"), as_values(v, "v")
    if u.ndim < 2 or v.ndim < 2 or u.shape[-2:] != v.shape[-2:]:
        raise ValueError(
            f"u and v must have one shape (..., L, r), got {tuple(u.shape)} and {tuple(v.shape)}"
        )
    rank = u.shape[-1]
    features = PositiveRandomFeatures(rank, num_features, stabilize=False, device=u.device)
    features.redraw(torch.Generator().manual_seed(seed))
    scale = rank**0.25  # the features divide by it: theirs is the kernel exp(q . k / sqrt r)
    return LowRank(*features(u * scale, v * scale), nonnegative=features.nonnegative)


def sine_spe(
    length: int,
    frequencies: Tensor,
    phases: Tensor,
    gains: Tensor,
    realizations: int,
    num_features: int,
    seed: int = 0,
) -> LowRank:
    """Make stochastic RPE as a mask: exp of the sine SPE's logits, of rank `num_features`."""
    factors = sine_factors(length, frequencies, phases, gains)
    return low_rank_logits(*stochastic_factors(*factors, realizations, seed), num_features, seed)
