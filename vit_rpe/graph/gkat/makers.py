"""Makers of masks: functions that a layer calls with its graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from vit_rpe.masks import Mask

from ..edges import Graph
from ..identity import graph_digest
from ..walks.kernel import WalkKernel
from ..walks.walks import random_walks

_KEPT = 8  # masks of the graphs that were seen last


class MaskMaker(Protocol):
    """A function that makes a mask from a graph: `make(edge_index, edge_weight, num_nodes=n)`."""

    def __call__(
        self, edge_index: Any, edge_weight: Tensor | None = None, *, num_nodes: int | None = None
    ) -> Mask: ...


@dataclass(frozen=True)
class RandomWalkMask:
    """A maker of the paper's mask, RWGNK: `RandomWalkMask(...)(edge_index, edge_weight)`.

    The same seed gives the same walks on the same graph. A layer in training uses `redrawn()` in
    each forward pass.
    """

    num_walks: int = 50
    num_steps: int = 3
    lam: float = 1.0
    alpha: float = 1.0
    seed: int = 0

    def __call__(
        self,
        edge_index: Tensor | Graph,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
    ) -> WalkKernel:
        walks = random_walks(
            edge_index, edge_weight, num_nodes=num_nodes,
            num_walks=self.num_walks, num_steps=self.num_steps, seed=self.seed,
        )  # fmt: skip
        return WalkKernel(walks, self.lam, self.alpha)

    def redrawn(self) -> RandomWalkMask:
        """Return the same maker with a new seed, from torch's generator (`torch.manual_seed`)."""
        return replace(self, seed=int(torch.randint(2**62, ())))


class RecentMasks:
    """A cache of the masks of the last graphs, by their edges; a copy of it starts empty."""

    def __init__(self) -> None:
        self._masks: dict[object, Mask] = {}

    def __len__(self) -> int:
        return len(self._masks)

    def __reduce__(self) -> tuple[type[RecentMasks], tuple[()]]:
        return RecentMasks, ()

    def mask(self, make: RandomWalkMask, graph: Graph) -> Mask:
        """Return the mask of this graph; make it if the graph is not one of the last."""
        digest = graph_digest(graph.edge_index, graph.edge_weight, num_nodes=graph.num_nodes)
        key = make, graph.edge_index.device, digest
        mask = self._masks.pop(key, None)
        if mask is None:
            mask = make(graph)
        self._masks[key] = mask  # at the end: the first one is the least recently used
        if len(self._masks) > _KEPT:
            del self._masks[next(iter(self._masks))]
        return mask


def as_maker(mask: MaskMaker | None) -> MaskMaker:
    """Check the maker of a layer's masks, by default RWGNK; a mask itself is a ValueError."""
    if mask is None:
        return RandomWalkMask()
    wanted = "mask must be a function of (edge_index, edge_weight, *, num_nodes) that makes a mask"
    if isinstance(mask, Mask):
        raise ValueError(f"{wanted}, got a {type(mask).__name__}: give it to forward(x, mask=...)")
    if isinstance(mask, type) and issubclass(mask, Mask):
        name = mask.__name__
        raise ValueError(
            f"{wanted}, got the class {name}: give a function that calls it, for instance "
            f"lambda edge_index, edge_weight, num_nodes: "
            f"{name}(edge_index, edge_weight, num_nodes=num_nodes, ...)"
        )
    if not callable(mask):
        raise ValueError(f"{wanted}, got {mask!r}")
    return mask
