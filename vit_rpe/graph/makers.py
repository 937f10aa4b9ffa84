"""Makers of masks: what a layer calls with the graph that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vit_rpe.masks import Mask

from .identity import graph_digest
from .kernels import WalkKernel
from .walks import random_walks

MaskMaker = Callable[[Tensor, int, Tensor | None], Mask]
"""From edge_index, the number of nodes and edge_weight to a mask."""

_KEPT = 8  # masks of graphs that were seen last


@dataclass(frozen=True)
class RandomWalkMask:
    """Makes the paper's mask, RWGNK: `RandomWalkMask(...)(edge_index, num_nodes, edge_weight)`.

    The same seed gives the same walks on the same graph. A layer in training uses `redrawn()` in
    each forward pass.
    """

    num_walks: int = 50
    length: int = 3
    lam: float = 1.0
    alpha: float = 1.0
    seed: int = 0

    def __call__(
        self, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
    ) -> WalkKernel:
        walks = random_walks(
            edge_index, self.num_walks, self.length, num_nodes,
            edge_weight=edge_weight, seed=self.seed,
        )  # fmt: skip
        return WalkKernel(walks, self.lam, self.alpha)

    def redrawn(self) -> RandomWalkMask:
        """The same with another seed, from torch's generator: `torch.manual_seed` decides."""
        return replace(self, seed=int(torch.randint(2**62, ())))


class RecentMasks:
    """The masks of the graphs that were seen last, known by their edges; a copy begins empty."""

    def __init__(self) -> None:
        self._masks: dict[object, Mask] = {}

    def __len__(self) -> int:
        return len(self._masks)

    def __reduce__(self) -> tuple[type[RecentMasks], tuple[()]]:
        return RecentMasks, ()

    def mask(
        self, make: RandomWalkMask, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None
    ) -> Mask:
        """The mask of this graph, made if it was not seen lately."""
        key = make, edge_index.device, graph_digest(edge_index, num_nodes, edge_weight)
        mask = self._masks.pop(key, None)
        if mask is None:
            mask = make(edge_index, num_nodes, edge_weight)
        self._masks[key] = mask  # at the end: the first is that which was not seen for longest
        if len(self._masks) > _KEPT:
            del self._masks[next(iter(self._masks))]
        return mask


def as_maker(mask: MaskMaker | None) -> MaskMaker:
    """What makes a layer's masks, by default RWGNK; a mask itself is a ValueError."""
    if mask is None:
        return RandomWalkMask()
    wanted = "mask must be a function of (edge_index, num_nodes, edge_weight) that makes a mask"
    if isinstance(mask, Mask):
        raise ValueError(f"{wanted}, got a {type(mask).__name__}: give it to forward(x, mask=...)")
    if isinstance(mask, type) and issubclass(mask, Mask):
        name = mask.__name__
        raise ValueError(
            f"{wanted}, got the class {name}: give a function that calls it, for instance "
            f"lambda edge_index, n, weight: {name}(edge_index, num_nodes=n, ...)"
        )
    if not callable(mask):
        raise ValueError(f"{wanted}, got {mask!r}")
    return mask
