"""Graph sketches (the paper's graphots): node embeddings that mix features and topology."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.features import ELUFeatures, FeatureMap
from vit_rpe.masks.helpers import as_count

from .kernel import WalkKernel


def graph_sketches(
    x: Tensor,
    mask: WalkKernel,
    dim: int,
    features: FeatureMap | None = None,
    seed: int = 0,
) -> Tensor:
    """Compute embeddings (L, dim) whose dot products are the masked attention, on average.

        g_i . g_j  ~  M[i, j] phi(x_i) . phi(x_j)

    Attention under a mask with features, M = Psi Psi^T, is itself a kernel, that of the products
    phi(x_i) (x) Psi_i. Random signs map these M L numbers of a node to `dim`:
    g_i = (phi(x_i) S) * (Psi_i T) / sqrt(dim), with an error that falls as 1 / sqrt(dim).
    O(visits dim), for a mask with one lam.
    """
    as_count(dim, "dim", least=1)
    if x.ndim != 2 or len(x) != mask.length:
        raise ValueError(
            f"a mask of {mask.length} nodes needs x of shape ({mask.length}, channels), "
            f"got {tuple(x.shape)}"
        )
    if mask.batch_shape:
        raise ValueError(
            f"graph sketches need a mask with one lam, got {tuple(mask.batch_shape)} of them"
        )
    features = ELUFeatures() if features is None else features
    phi = features.key(features.cast_and_normalize(x))
    generator = torch.Generator().manual_seed(seed)

    def signs(rows: int) -> Tensor:
        drawn = torch.randint(2, (rows, dim), generator=generator, dtype=torch.int8)
        return (2 * drawn - 1).to(phi.device, phi.dtype)

    return (phi @ signs(phi.shape[-1])) * mask.read(signs(mask.length)) * dim**-0.5


graphots = graph_sketches  # the paper's name
