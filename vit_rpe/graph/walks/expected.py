"""The kernel that random walks estimate, as a matrix: for small graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from vit_rpe.masks import Dense
from vit_rpe.masks.helpers import as_count, as_probability, as_values

from ..edges import Graph, as_graph, coalesce
from .visits import power_or_inf


def expected_walk_kernel(
    edge_index: Tensor | Graph,
    edge_weight: Tensor | None = None,
    *,
    num_nodes: int | None = None,
    num_steps: int | None,
    lam: float | Tensor = 1.0,
    alpha: float = 1.0,
    stop: float = 0.0,
) -> Dense:
    """Compute what `WalkKernel` tends to with ever more walks, as a matrix. O(L^3).

    E[psi] = sum_t (lam (1 - stop))^t P^t for the transition matrix P, up to `num_steps` steps,
    or to infinity with `num_steps=None`, where lam (1 - stop) must be less than 1.
    """
    graph = as_graph(edge_index, edge_weight, num_nodes=num_nodes, undirected=False)
    n = graph.num_nodes
    as_probability(stop, "stop")
    if num_steps is not None:
        as_count(num_steps, "num_steps", least=0)
    key, weight = coalesce(graph)
    step = weight.new_zeros(n**2).index_put((key,), weight).reshape(n, n)
    total = step.sum(1, keepdim=True)
    step = step / total.masked_fill(total == 0, 1.0)
    rate = as_values(lam, "lam")[..., None, None] * (1 - stop)
    eye = torch.eye(n, dtype=step.dtype, device=step.device)
    if num_steps is None:
        if not (rate.abs() < 1).all():
            largest = float(rate.detach().abs().max())
            raise ValueError(f"num_steps=None needs lam (1 - stop) below 1, got {largest}")
        psi = torch.linalg.inv(eye - rate * step)
    else:
        psi = eye.expand(*rate.shape[:-2], *eye.shape)
        for _ in range(num_steps):  # Horner's scheme
            psi = eye + rate * (step @ psi)
    psi = psi / power_or_inf(torch.linalg.vector_norm(psi, dim=-1, keepdim=True), alpha)
    return Dense(psi @ psi.mT)
