"""Mixup and CutMix by timm, drawn from (seed, step), the same on any number of ranks.

A sample is mixed with its neighbor in the batch: 0 with 1, 2 with 3, ... The part of a rank, if it
has an even number of samples, holds both, so that the number of ranks changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from timm.data.mixup import Mixup
from torch import Tensor

from ..batches import Batch
from ..seeding import Purpose, preserve_rng, seed_all

MODES = ("batch", "pair", "elem")


@dataclass(frozen=True)
class Mixing:
    """Mix the images and targets of a batch. A draw is shared by all, a pair or nobody, by `mode`.

    `options` are those of timm.data.Mixup: mixup_alpha, cutmix_alpha, cutmix_minmax, prob,
    switch_prob, correct_lam, label_smoothing. Targets of what is not valid are zero, and a sample
    whose neighbor is not valid is mixed with itself.
    """

    num_classes: int
    seed: int
    mode: str = "batch"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mixing mode is one of {MODES}, got {self.mode!r}")
        self._mixup()

    def __call__(self, batch: Batch, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return mixed images, and targets (B, classes), on the device of images and labels."""
        size = len(images)
        if size % 2 or batch.global_offset % 2:
            raise ValueError(f"mixing needs an even number of samples on every rank, got {size}")
        valid = batch.valid.to(images.device)
        source = torch.arange(size, device=images.device)
        source = torch.where(valid | ~valid[source ^ 1], source, source ^ 1)
        images, labels = images[source], labels[source].clamp(min=0)
        # the frames of a clip as channels: timm would cut a box of time and height out of it
        planes = images.flatten(1, -3)
        with preserve_rng():
            planes, targets = self._mixed(planes, labels, batch)
        return planes.reshape(images.shape), targets * valid[:, None]

    def _mixed(self, images: Tensor, labels: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        mixup = self._mixup()
        if self.mode == "batch":
            seed_all(Purpose.MIXING, self.seed, batch.step)
            # timm mixes the first with the last, the second with the last but one, ...
            index = torch.arange(len(images), device=images.device)
            there = torch.cat([index[::2], index[1::2].flip(0)])
            images, targets = mixup(images[there], labels[there])
            back = torch.argsort(there)
            return images[back], targets[back]
        parts = []
        step = 2 if self.mode == "pair" else 1
        for i in range(0, len(images), step):
            seed_all(Purpose.MIXING, self.seed, batch.step, batch.global_offset + i)
            pair = [i, i ^ 1]
            parts.append([part[:step] for part in mixup(images[pair], labels[pair])])
        mixed, targets = zip(*parts, strict=True)
        return torch.cat(mixed), torch.cat(targets)

    def _mixup(self) -> Mixup:
        return Mixup(mode="batch", num_classes=self.num_classes, **self.options)
