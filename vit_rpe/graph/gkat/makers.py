"""Makers of masks: functions that a layer calls with its graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from vit_rpe.masks import Mask

from ..edges import Graph
from ..identity import graph_digest
from ..spectral import Diffusion
from ..walks.kernel import RWGNK

_KEPT = 8  # masks of the graphs that were seen last


class MaskMaker(Protocol):
    """A function that makes a mask from a graph: `make(edge_index, edge_weight, num_nodes=n)`."""

    def __call__(
        self, edge_index: Any, edge_weight: Tensor | None = None, *, num_nodes: int | None = None
    ) -> Mask: ...


@dataclass(frozen=True)
class DiffusionKernel:
    """A maker of `Diffusion` masks: heat that has spread along the edges for a time `lam`."""

    lam: float = 1.0
    kind: str = "laplacian"
    tol: float = 1e-8

    def __call__(
        self,
        edge_index: Tensor | Graph,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
    ) -> Diffusion:
        return Diffusion(
            edge_index, edge_weight, num_nodes=num_nodes,
            lam=self.lam, kind=self.kind, tol=self.tol, nonnegative=self.lam >= 0,
        )  # fmt: skip


NAMED = {"rwgnk": RWGNK, "diffusion": DiffusionKernel}


class RecentMasks:
    """A cache of the masks of the last graphs, by their edges; a copy of it starts empty."""

    def __init__(self) -> None:
        self._masks: dict[object, Mask] = {}

    def __len__(self) -> int:
        return len(self._masks)

    def __reduce__(self) -> tuple[type[RecentMasks], tuple[()]]:
        return RecentMasks, ()

    def mask(self, make: RWGNK | DiffusionKernel, graph: Graph) -> Mask:
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


def as_maker(mask: MaskMaker | str | None) -> MaskMaker:
    """Check the maker of a layer's masks, by default RWGNK; a mask itself is a ValueError."""
    if mask is None:
        return RWGNK()
    names = " or ".join(repr(name) for name in NAMED)
    wanted = (
        f"mask must be {names}, or a function of (edge_index, edge_weight, *, num_nodes) that "
        "makes a mask"
    )
    if isinstance(mask, str) and mask in NAMED:
        return NAMED[mask]()
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
