"""Learned functions of an offset or a distance, resampled for another grid."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vit_rpe.precision import has_float64


def resample(values: Tensor, size: int, dim: int = -1) -> Tensor:
    """Resample a sampled function to `size` points; the first and the last one stay as they are.

    Through each new point goes the cubic of the four old ones around it: exact for cubics, and
    smooth functions come back from a larger grid unchanged to 1e-3 and better.
    """
    if values.shape[dim] == size:
        return values
    # where the values are, or they would have to be copied there
    device = values.device if has_float64(values.device) else torch.device("cpu")
    weights = _cubic_weights(values.shape[dim], size, device).to(values.dtype).to(values.device)
    return torch.movedim(torch.movedim(values, dim, -1) @ weights.T, -1, dim)


def resample_offsets(
    offsets: Tensor, old: Sequence[int], new: Sequence[int], crop_axes: Sequence[int] = ()
) -> Tensor:
    """A table of offsets, (..., 2 n_1 - 1, ..., 2 n_d - 1), for a grid of other sides.

    A shorter side along an axis in `crop_axes` crops the table.

    Negative and positive offsets are taken apart along each axis: a mask may have a kink at 0, and
    one side of a one-sided axis means nothing.
    """
    for axis, (n, size) in enumerate(zip(old, new, strict=True)):
        dim = axis - len(old)
        if size < n and axis in crop_axes:
            offsets = offsets.narrow(dim, n - size, 2 * size - 1).contiguous()
        elif n != size:
            earlier = resample(offsets.narrow(dim, 0, n).flip(dim), size, dim).flip(dim)
            later = resample(offsets.narrow(dim, n - 1, n), size, dim)
            offsets = torch.cat([earlier, later.narrow(dim, 1, size - 1)], dim)
    return offsets


def _cubic_weights(old: int, new: int, device: torch.device) -> Tensor:
    """The (new, old) matrix of Lagrange weights, in float64."""
    options = {"dtype": torch.float64, "device": device}
    index = torch.arange(new, device=device)
    point = index.to(torch.float64) * ((old - 1) / max(new - 1, 1))
    count = min(old, 4)
    first = (point.floor().long() - 1).clamp(0, old - count)
    weights = torch.zeros(new, old, **options)
    for i in range(count):
        weight = torch.ones(new, **options)
        for j in range(count):
            if j != i:
                weight = weight * (point - (first + j)) / (i - j)
        weights[index, first + i] = weight
    return weights
