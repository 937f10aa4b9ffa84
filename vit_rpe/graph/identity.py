"""Digests of the edges and weights of a graph, by which it is recognized."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_ADD, _TIMES = 0x2545F4914F6CDD1D, -0x61C8864680B583EB  # random, and odd


def graph_digest(edge_index: Tensor, edge_weight: Tensor | None, *, num_nodes: int) -> str:
    """Name a graph by its edges, in their order. The name is part of seeds and must not change."""
    digest = hashlib.sha256(str(num_nodes).encode())
    for part in (edge_index, edge_weight):
        if part is not None:
            numbers = part.detach().cpu().contiguous()
            digest.update(numbers.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()[:32]


def edge_fingerprints(edge_index: Tensor, edge_weight: Tensor | None, *, ptr: Tensor) -> Tensor:
    """Compute a number for each graph of a batch, which is the same for edges in any order: (B,).

    Graph b has the nodes from `ptr[b]` to `ptr[b + 1]`, as in PyG; it has the same number when it
    is the only one.
    """
    graphs = len(ptr) - 1
    graph = torch.bucketize(edge_index[0], ptr[1:], right=True).clamp(max=graphs - 1)
    source, target = edge_index - ptr[graph]
    mixed = _mixed(_mixed(source) + target)
    if edge_weight is not None:
        mixed = _mixed(mixed + edge_weight.detach().double().view(torch.int64))
    return torch.zeros_like(ptr[1:]).index_add(0, graph, mixed)


def _mixed(x: Tensor) -> Tensor:
    """Spread whole numbers over all of int64; they wrap around."""
    x = (x + _ADD) * _TIMES
    return (x ^ (x >> 32)) * _TIMES
