"""Random directions that are orthogonal in blocks: they estimate better than independent ones."""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonal_gaussian(
    rows: int,
    columns: int,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw a (rows, columns) matrix of standard Gaussian rows, orthogonal within blocks.

    Drawn on the CPU in float64, so that a seed gives the same matrix on every device.
    """
    blocks = []
    for start in range(0, rows, columns):
        gaussian = torch.randn(columns, columns, dtype=torch.float64, generator=generator)
        q, r = torch.linalg.qr(gaussian)
        # signs of r's diagonal make q uniform over the orthogonal group
        blocks.append((q * r.diagonal().sign()).T[: rows - start])
    lengths = torch.randn(rows, columns, dtype=torch.float64, generator=generator).norm(dim=1)
    return (torch.cat(blocks) * lengths[:, None]).to(device, torch.get_default_dtype())
