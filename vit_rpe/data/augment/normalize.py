"""Bytes to normalized floats, some with erased parts: what is left for the model's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from ..seeding import Purpose, preserve_rng, seed_all


@dataclass(frozen=True)
class Erasing:
    """timm's random erasing: a probability, what erases (const, rand, pixel), most rectangles."""

    prob: float
    mode: str = "const"
    count: int = 1

    @cached_property
    def erase(self) -> RandomErasing:
        """timm's module, which draws on the CPU, so that all devices erase the same."""
        return RandomErasing(self.prob, mode=self.mode, max_count=self.count, device="cpu")


@dataclass(frozen=True)
class NormalizeAndErase:
    """Normalize images (B, C, H, W), clips (B, C, T, H, W) or views of clips (B, V, C, T, H, W)."""

    mean: Sequence[float]
    std: Sequence[float]
    erasing: Erasing | None = None
    dims: int = 2  # after the channels

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], *, training: bool, dims: int
    ) -> NormalizeAndErase:
        """Read timm's options: mean, std, and in training re_prob, re_mode, re_count."""
        erasing = None
        if training and options.get("re_prob"):
            mode, count = options.get("re_mode", "const"), options.get("re_count", 1)
            erasing = Erasing(options["re_prob"], mode, count)
        mean = options.get("mean", IMAGENET_DEFAULT_MEAN)
        return cls(mean, options.get("std", IMAGENET_DEFAULT_STD), erasing, dims)

    def __call__(self, images: Tensor, draws: Sequence[tuple[int, ...]]) -> Tensor:
        """Normalize a batch of bytes; `draws` are the keys of the samples' random draws."""
        mean, std = (
            torch.tensor(values, device=images.device).view(-1, *[1] * self.dims) * 255
            for values in (self.mean, self.std)
        )
        images = _normalized(images, mean, std)
        if self.erasing is not None:
            with preserve_rng():
                for image, key in zip(images, draws, strict=True):
                    seed_all(Purpose.ERASING, *key)
                    self.erasing.erase(image.flatten(0, -3))  # the frames of a clip as channels
        return images


def _normalized(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Compute (images - mean) / std.

    On a CPU one image at a time, as it fits into the cache, and by NumPy: torch would start threads
    for each, which get in the way of the workers.
    """
    if not images.is_cpu:
        return images.float().sub_(mean).div_(std)
    out = torch.empty(images.shape)
    for image, result in zip(images.numpy(), out.numpy(), strict=True):
        result[...] = image
        result -= mean.numpy()
        result /= std.numpy()
    return out
