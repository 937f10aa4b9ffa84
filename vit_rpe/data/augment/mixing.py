"""Mixup and CutMix by timm, drawn from (seed, step), the same on any number of ranks.

A sample is mixed with its neighbour in the batch: places 0 and 1, 2 and 3, ... The part of a rank,
if it has an even number of samples, holds both, so that the number of ranks changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from timm.data.mixup import Mixup
from torch import Tensor

from ..batches import Batch
from ..seeding import Purpose, kept_generators, seed_all

MODES = ("batch", "pair", "elem")


@dataclass(frozen=True)
class Mixing:
    """Images and soft targets of a batch. `mode` says who shares a draw: all, a pair, or nobody.

    `options` are those of timm.data.Mixup: mixup_alpha, cutmix_alpha, cutmix_minmax, prob,
    switch_prob, correct_lam, label_smoothing. Targets of places that are not valid are zero, and a
    sample whose neighbour is not valid is mixed with itself.
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
        """Mixed images, and targets (B, classes); on whatever device images and labels are."""
        size = len(images)
        if size % 2 or batch.first % 2:
            raise ValueError(f"mixing needs an even number of samples on every rank, got {size}")
        valid = batch.valid.to(images.device)
        source = torch.arange(size, device=images.device)
        source = torch.where(valid | ~valid[source ^ 1], source, source ^ 1)
        images, labels = images[source], labels[source].clamp(min=0)
        # the frames of a clip as channels: timm would cut a box of time and height out of it
        planes = images.flatten(1, -3)
        with kept_generators():
            planes, targets = self._mixed(planes, labels, batch)
        return planes.reshape(images.shape), targets * valid[:, None]

    def _mixed(self, images: Tensor, labels: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        mixup = self._mixup()
        if self.mode == "batch":
            seed_all(Purpose.MIXING, self.seed, batch.step)
            # timm mixes the first with the last, the second with the last but one, ...
            places = torch.arange(len(images), device=images.device)
            there = torch.cat([places[::2], places[1::2].flip(0)])
            images, targets = mixup(images[there], labels[there])
            back = torch.argsort(there)
            return images[back], targets[back]
        parts = []
        step = 2 if self.mode == "pair" else 1
        for place in range(0, len(images), step):
            seed_all(Purpose.MIXING, self.seed, batch.step, batch.first + place)
            pair = [place, place ^ 1]
            parts.append([part[:step] for part in mixup(images[pair], labels[pair])])
        mixed, targets = zip(*parts, strict=True)
        return torch.cat(mixed), torch.cat(targets)

    def _mixup(self) -> Mixup:
        return Mixup(mode="batch", num_classes=self.num_classes, **self.options)
