"""Random walks on graphs in plain torch, all nodes and walks at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .edges import as_count, as_graph, as_probability, edge_weights, row_starts


@dataclass(frozen=True)
class Walks:
    """W walks from each of L nodes: `nodes` (L, W, T + 1), int32, -1 after a walk has ended.

    `factor` (L,) is what an edge weighs over how likely it is taken from a node; it is the same for
    all edges that leave the node.
    """

    nodes: Tensor
    factor: Tensor

    def __getitem__(self, rows: slice) -> Walks:
        """The walks from some of the nodes."""
        return Walks(self.nodes[rows], self.factor)

    @property
    def num_nodes(self) -> int:
        return self.nodes.shape[0]

    @property
    def steps(self) -> int:
        """The number of steps T; a walk visits up to T + 1 nodes."""
        return self.nodes.shape[2] - 1

    def importance(self) -> Tensor:
        """The weight of each walk so far over its probability, (L, W, T + 1); 0 after the end.

        Visits at step t that count so much are the entries of Adj^t on average (Reid et al. 2023).
        """
        taken = self.factor[self.nodes[..., :-1]].cumprod(-1)
        weight = F.pad(taken, (1, 0), value=1.0)
        return weight.masked_fill(self.nodes < 0, 0.0)


def random_walks(
    edge_index: Tensor,
    num_walks: int,
    length: int | None,
    num_nodes: int | None = None,
    *,
    edge_weight: Tensor | None = None,
    stop: float = 0.0,
    seed: int = 0,
) -> Walks:
    """Walks that leave a node along its edges with probabilities proportional to their weights.

    A walk ends after `length` edges, before any of them with probability `stop` (the paper's p),
    and where no edge leaves. `length=None` needs a `stop` above 0 and goes on until all have ended.
    The same seed gives the same walks on the same kind of device. Edges are followed from
    `edge_index[0]` to `edge_index[1]`, and need not come in both directions. O(L W) a step.
    """
    num_nodes = as_graph(edge_index, num_nodes, edge_weight, undirected=False)
    _check(num_walks, length, stop)
    as_count(seed, "seed")
    device = edge_index.device
    generator = torch.Generator(device).manual_seed(seed)
    roads = _Roads(edge_index, edge_weights(edge_index, edge_weight), num_nodes)

    small = torch.int32 if num_nodes < 2**31 - 1 else torch.int64
    here = torch.arange(num_nodes, device=device).repeat_interleave(num_walks)
    visited = [here.to(small)]
    while length is None or len(visited) <= length:
        if stop > 0:
            stops = torch.rand(len(here), generator=generator, device=device) < stop
            here = here.masked_fill(stops, num_nodes)
        draw = torch.rand(len(here), generator=generator, dtype=torch.float64, device=device)
        here = roads.next(here, draw)
        if length is None and (here == num_nodes).all():
            break
        visited.append(here.to(small))
    nodes = torch.stack(visited, -1).reshape(num_nodes, num_walks, len(visited))
    if stop > 0 or roads.dead_ends:
        nodes.masked_fill_(nodes == num_nodes, -1)
    return Walks(nodes, roads.total / max(1 - stop, 1e-300))


def _check(num_walks: int, length: int | None, stop: float) -> None:
    as_count(num_walks, "num_walks", least=1)
    as_probability(stop, "stop")
    if length is not None:
        as_count(length, "length", least=0)
    elif stop == 0:
        raise ValueError("length=None needs a stop above 0, or walks would never end")


class _Roads:
    """Where one can go from each node, by inverse cumulative probabilities.

    Node L is nowhere: all roads from it, and from nodes that no edge leaves, lead there.
    """

    def __init__(self, edge_index: Tensor, weight: Tensor, num_nodes: int):
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
        # every row adds 1, so that a row of tiny weights loses no digits beside large ones
        self.reached = (weight / self.total[row]).cumsum(0)
        before = F.pad(self.reached, (1, 0))
        self.before, self.until = before[starts[:-1]], before[starts[1:]]

    def next(self, here: Tensor, draw: Tensor) -> Tensor:
        """The next node for uniform numbers `draw`."""
        first = self.first.index_select(0, here)
        if self.uniform:
            place = draw.mul_(self.almost.index_select(0, here)).long().add_(first)
            return self.target.index_select(0, place)
        before = self.before.index_select(0, here)
        wanted = before + draw * (self.until.index_select(0, here) - before)
        place = torch.searchsorted(self.reached, wanted, right=True)
        last = first + self.count.index_select(0, here) - 1  # round-off may lead past it
        return self.target.index_select(0, torch.minimum(torch.maximum(place, first), last))
