"""Bytes to normalised floats, some with erased parts: what is left to do on the model's device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from ..seeding import Purpose, kept_generators, seed_all


@dataclass(frozen=True)
class Erasing:
    """timm's random erasing: a probability, what erases (const, rand, pixel), most rectangles."""

    prob: float
    mode: str = "const"
    count: int = 1

    @cached_property
    def erase(self) -> RandomErasing:
        """Draws on the CPU, wherever the images are, so that all devices erase the same."""
        return RandomErasing(self.prob, mode=self.mode, max_count=self.count, device="cpu")


@dataclass(frozen=True)
class Finish:
    """For images (B, C, H, W), clips (B, C, T, H, W) and views of clips (B, V, C, T, H, W)."""

    mean: Sequence[float]
    std: Sequence[float]
    erasing: Erasing | None = None
    dims: int = 2  # after the channels

    def __call__(self, images: Tensor, draws: Sequence[tuple[int, ...]]) -> Tensor:
        """`draws` are the keys of the samples' random draws."""
        mean, std = (
            torch.tensor(values, device=images.device).view(-1, *[1] * self.dims) * 255
            for values in (self.mean, self.std)
        )
        images = _normalised(images, mean, std)
        if self.erasing is not None:
            with kept_generators():
                for image, key in zip(images, draws, strict=True):
                    seed_all(Purpose.ERASING, *key)
                    self.erasing.erase(image.flatten(0, -3))  # the frames of a clip as channels
        return images


def _normalised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(images - mean) / std. On a CPU one by one, as they fit into its cache, and by NumPy: torch
    would start threads for each, which get in the way of the workers."""
    if not images.is_cpu:
        return images.float().sub_(mean).div_(std)
    out = torch.empty(images.shape)
    for image, result in zip(images.numpy(), out.numpy(), strict=True):
        result[...] = image
        result -= mean.numpy()
        result /= std.numpy()
    return out
