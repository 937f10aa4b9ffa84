"""Pictures in a page: bytes to PNG or JPEG, as text."""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

SMALL = 48  # pixels of a side up to which PNG is smaller, and exact
QUALITY = 82


def encode(data: bytes) -> str:
    """Return bytes as text (base64)."""
    return base64.b64encode(data).decode()


def as_address(pixels: Tensor) -> str:
    """Return a picture, bytes (3, H, W), as a data address."""
    image = Image.fromarray(pixels.movedim(0, -1).contiguous().numpy(), "RGB")
    file, small = io.BytesIO(), max(image.size) <= SMALL
    if small:
        image.save(file, "PNG", optimize=True)
    else:
        image.save(file, "JPEG", quality=QUALITY)
    return f"data:image/{'png' if small else 'jpeg'};base64,{encode(file.getvalue())}"


def fitted(pixels: Tensor, side: int) -> Tensor:
    """Shrink pictures, bytes (B, 3, H, W), to at most `side` pixels a side."""
    large = max(pixels.shape[-2:])
    if large <= side:
        return pixels
    size = [max(1, round(n * side / large)) for n in pixels.shape[-2:]]
    small = interpolate(pixels.float(), size, mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8)


def still(pixels: Tensor) -> Tensor:
    """Return the middle frame of clips (B, 3, T, H, W); images stay as they are."""
    return pixels[:, :, pixels.shape[2] // 2] if pixels.ndim == 5 else pixels


class Album:
    """Pictures of a report, each written once, as long as they fit into some bytes."""

    def __init__(self, budget: int):
        self.addresses: list[str] = []
        self.left = budget
        self.refused = 0

    def add(self, pixels: Tensor) -> int | None:
        """Add a picture and return its number; None if it does not fit."""
        address = as_address(pixels)
        if len(address) > self.left:
            self.refused += 1
            return None
        self.left -= len(address)
        self.addresses.append(address)
        return len(self.addresses) - 1
