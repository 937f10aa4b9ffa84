"""Random walks on graphs in plain torch, all nodes and walks at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks.helpers import as_count, as_probability, row_starts

from ..edges import Graph, as_graph


@dataclass(frozen=True)
class Walks:
    """W walks from each of L nodes: `nodes` (L, W, T + 1), int32, -1 after a walk has ended.

    `factor` (L,) is the weight of an edge over the probability of taking it from a node; it is the
    same for all edges that leave the node.
    """

    nodes: Tensor
    factor: Tensor

    def __getitem__(self, rows: slice) -> Walks:
        """Select the walks from some of the nodes."""
        return Walks(self.nodes[rows], self.factor)

    @property
    def num_nodes(self) -> int:
        return self.nodes.shape[0]

    @property
    def steps(self) -> int:
        """The number of steps T; a walk visits up to T + 1 nodes."""
        return self.nodes.shape[2] - 1

    def importance(self) -> Tensor:
        """Compute the weight of each walk so far over its probability, (L, W, T + 1); 0 at the end.

        Visits at step t with these weights are on average the entries of Adj^t (Reid et al. 2023).
        """
        taken = self.factor[self.nodes[..., :-1]].cumprod(-1)
        weight = F.pad(taken, (1, 0), value=1.0)
        return weight.masked_fill(self.nodes < 0, 0.0)


def check_walks(walks: object, name: str) -> None:
    """Raise ValueError unless `walks` are what `random_walks` returns."""
    if not isinstance(walks, Walks):
        raise ValueError(f"{name} must be what random_walks returns, got {type(walks).__name__}")


def random_walks(
    edge_index: Tensor | Graph,
    edge_weight: Tensor | None = None,
    *,
    num_nodes: int | None = None,
    num_walks: int,
    num_steps: int | None,
    stop: float = 0.0,
    seed: int = 0,
) -> Walks:
    """Draw walks that leave a node along its edges with probability proportional to their weights.

    A walk ends after `num_steps` edges, before any of them with probability `stop` (the paper's p),
    and where no edge leaves. `num_steps=None` needs a `stop` above 0 and continues until all walks
    have ended.
    The same seed gives the same walks on the same kind of device. Edges are followed from
    `edge_index[0]` to `edge_index[1]`, and need not come in both directions. O(L W) a step.
    """
    graph = as_graph(edge_index, edge_weight, num_nodes=num_nodes, undirected=False)
    _check(num_walks, num_steps, stop)
    as_count(seed, "seed")
    num_nodes, device = graph.num_nodes, graph.edge_index.device
    generator = torch.Generator(device).manual_seed(seed)
    transitions = _Transitions(graph)

    small = torch.int32 if num_nodes < 2**31 - 1 else torch.int64
    here = torch.arange(num_nodes, device=device).repeat_interleave(num_walks)
    visited = [here.to(small)]
    while num_steps is None or len(visited) <= num_steps:
        if stop > 0:
            stops = torch.rand(len(here), generator=generator, device=device) < stop
            here = here.masked_fill(stops, num_nodes)
        draw = torch.rand(len(here), generator=generator, dtype=torch.float64, device=device)
        here = transitions.next(here, draw)
        if num_steps is None and (here == num_nodes).all():
            break
        visited.append(here.to(small))
    nodes = torch.stack(visited, -1).reshape(num_nodes, num_walks, len(visited))
    if stop > 0 or transitions.dead_ends:
        nodes.masked_fill_(nodes == num_nodes, -1)
    return Walks(nodes, transitions.total / max(1 - stop, 1e-300))


def _check(num_walks: int, num_steps: int | None, stop: float) -> None:
    as_count(num_walks, "num_walks", least=1)
    as_probability(stop, "stop")
    if num_steps is not None:
        as_count(num_steps, "num_steps", least=0)
    elif stop == 0:
        raise ValueError("num_steps=None needs a stop above 0, or walks would never end")


class _Transitions:
    """The next nodes of walks, drawn by inverse cumulative probabilities.

    Node L is the end of a walk: nodes that no edge leaves lead there, and it leads to itself.
    """

    def __init__(self, graph: Graph):
        edge_index, weight, num_nodes = graph.edge_index, graph.weights, graph.num_nodes
        passable = (weight > 0).nonzero().squeeze(-1)
        order = passable[torch.argsort(edge_index[0, passable], stable=True)]
        row, weight = edge_index[0, order], weight[order].double()
        self.total = weight.new_zeros(num_nodes).index_add_(0, row, weight)
        self.target = F.pad(edge_index[1, order], (0, 1), value=num_nodes)
        starts = F.pad(row_starts(row, num_nodes), (0, 1), value=len(row))
        self.count = starts.diff().clamp(min=1)
        self.first = torch.where(starts.diff() > 0, starts[:-1], len(row))
        self.dead_ends = bool((starts.diff()[:-1] == 0).any())
        self.uniform = bool((weight == weight[:1]).all())
        if self.uniform:
            self.almost = self.count * (1 - 2.0**-52)  # a draw times it is less than the count
            return
        # every row adds 1, so that a row of tiny weights loses no digits next to large ones
        self.reached = (weight / self.total[row]).cumsum(0)
        before = F.pad(self.reached, (1, 0))
        self.before, self.until = before[starts[:-1]], before[starts[1:]]

    def next(self, here: Tensor, draw: Tensor) -> Tensor:
        """Draw the next node from uniform numbers `draw`, which are overwritten."""
        first = self.first.index_select(0, here)
        if self.uniform:
            edge = draw.mul_(self.almost.index_select(0, here)).long().add_(first)
            return self.target.index_select(0, edge)
        before = self.before.index_select(0, here)
        wanted = before + draw * (self.until.index_select(0, here) - before)
        edge = torch.searchsorted(self.reached, wanted, right=True)
        last = first + self.count.index_select(0, here) - 1  # round-off may lead past it
        return self.target.index_select(0, torch.minimum(torch.maximum(edge, first), last))
