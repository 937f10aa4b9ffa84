"""Graphs that are known by a formula, as PyG's `edge_index`: grids and hypercubes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from vit_rpe.masks.helpers import as_grid


def grid_edges(grid: Sequence[int]) -> Tensor:
    """Make the edges of a grid of nodes in row-major order, (2, E), both ways; (n,) is a path.

    Its shortest paths are the L1 distances of `DistanceRPE`.
    """
    sides = as_grid(grid)
    nodes = torch.arange(prod(sides)).reshape(sides)
    pairs = [
        torch.stack([nodes.narrow(axis, 0, n - 1), nodes.narrow(axis, 1, n - 1)]).flatten(1)
        for axis, n in enumerate(sides)
    ]
    return both_directions(torch.cat(pairs, 1))


def hypercube_edges(dim: int) -> Tensor:
    """Make the edges of the hypercube of 2^dim nodes; neighbors differ in one bit."""
    if dim < 0:
        raise ValueError(f"a hypercube has 0 or more dimensions, got {dim}")
    nodes = torch.arange(2**dim)
    pairs = [torch.stack([nodes, nodes ^ (1 << bit)]) for bit in range(dim)]
    return torch.cat(pairs, 1) if pairs else torch.empty(2, 0, dtype=torch.int64)


def both_directions(edges: Tensor) -> Tensor:
    """Join edges that are given once, (2, E), with their counterparts: (2, 2 E)."""
    return torch.cat([edges, edges.flip(0)], 1)
