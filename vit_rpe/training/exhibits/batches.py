"""Batches as the model saw them: augmented, mixed, and made visible again.

Shapes: B samples, K classes; images (B, 3, H, W), clips (B, 3, T, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vit_rpe.data import Batch

from .files import Exhibit

SAMPLES, FRAMES, SIDE = 16, 4, 160  # at most
PARTS = 2  # of a mixed target


def visible(images: Tensor, config: dict[str, Any]) -> Tensor:
    """Return normalized images or clips as bytes; `config` has the mean and std of the pixels."""
    shape = (-1, *[1] * (images.ndim - 2))
    mean, std = (torch.tensor(config[name]).view(shape) for name in ("mean", "std"))
    pixels = (images.detach().float().cpu() * std + mean) * 255
    return pixels.round().clamp(0, 255).to(torch.uint8)


def batch_exhibit(
    batch: Batch, images: Tensor, targets: Tensor, config: dict[str, Any], most: int = SAMPLES
) -> Exhibit:
    """Keep the first samples of a batch, some frames of each, no larger than they are looked at."""
    images = images[:most]
    if images.ndim == 5:
        images = images[:, :, _spread(images.shape[2], FRAMES)]
    stride = -(-max(images.shape[-2:]) // SIDE)
    weights, classes = targets[:most].float().topk(min(PARTS, targets.shape[1]), 1)
    return Exhibit(
        "batch",
        batch.epoch,
        {
            "images": visible(images[..., ::stride, ::stride], config),
            "classes": classes,
            "weights": weights,
        },
        {"step": batch.step, "keys": batch.keys[:most]},
    )


def _spread(count: int, most: int) -> Sequence[int]:
    kept = min(count, most)
    return [round(i * (count - 1) / max(kept - 1, 1)) for i in range(kept)]


def contact_sheet(images: Tensor) -> Tensor:
    """Lay images side by side, (3, rows, columns); the frames of a clip stand below each other."""
    frames = images.transpose(1, 2) if images.ndim == 5 else images[:, None]
    return torch.cat([torch.cat([*sample], 1) for sample in frames], 2)
