"""Many graphs in a few tensors, and batches of them.

Shapes: S graphs, L nodes and E directed edges of all of them, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from vit_rpe.files import atomic_write, cache_folder
from vit_rpe.graph import TreeExponential
from vit_rpe.masks import Mask

FORMAT = 1  # of the files in the cache, and of what the generators draw: raise it when they change


@dataclass
class GraphBatch:
    """Some graphs as one: `batch` (L,) says which graph a node is in, `ptr` where each begins."""

    x: Tensor
    edge_index: Tensor
    y: Tensor
    batch: Tensor
    ptr: Tensor
    mask: Mask | None = None
    tree: TreeExponential | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class GraphSet:
    """S graphs: `x` (L, F), `y` (S,), `edge_index` (2, E) in node numbers of each graph.

    `node_ptr` and `edge_ptr` (S + 1,) say where the nodes and edges of a graph begin.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    node_ptr: Tensor
    edge_ptr: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def num_classes(self) -> int:
        return int(self.y.max()) + 1

    def batch(self, index: Tensor) -> GraphBatch:
        """Join some graphs into one, as PyG's `Batch` does."""
        nodes, node_ptr = ragged(self.node_ptr, index)
        edges, edge_ptr = ragged(self.edge_ptr, index)
        shift = node_ptr[:-1].repeat_interleave(edge_ptr.diff())
        graphs = torch.arange(len(index)).repeat_interleave(node_ptr.diff())
        edge_index = self.edge_index[:, edges] + shift
        return GraphBatch(self.x[nodes], edge_index, self.y[index], graphs, node_ptr)

    def select(self, index: Tensor) -> GraphSet:
        """Return a set of some of the graphs."""
        nodes, node_ptr = ragged(self.node_ptr, index)
        edges, edge_ptr = ragged(self.edge_ptr, index)
        return GraphSet(self.x[nodes], self.edge_index[:, edges], self.y[index], node_ptr, edge_ptr)


def ragged(ptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of some of the rows that `ptr` divides, and the `ptr` of these."""
    count = ptr.diff()[index]
    new = pointers(count)
    position = torch.arange(int(new[-1])) + (ptr[index] - new[:-1]).repeat_interleave(count)
    return position, new


def pointers(count: Tensor) -> Tensor:
    """Return where each of some runs begins, and where the last one ends."""
    return torch.cat([count.new_zeros(1), count.cumsum(0)])


def kept(name: str, make: Callable[[], GraphSet]) -> GraphSet:
    """Read a set from the cache of the package, or make it and write it there."""
    file = cache_folder() / "graphs" / f"{name}-v{FORMAT}.safetensors"
    found = _read(file)
    if found is None:
        found = make()
        try:
            _write(file, found)
        except OSError:  # a cache that cannot be written saves no time, and does no harm
            pass
    return found


def _read(file: Path) -> GraphSet | None:
    """Read a set; None if there is no file, or a broken one."""
    try:
        return GraphSet(**load_file(file))
    except (OSError, SafetensorError, TypeError):
        return None


def _write(file: Path, graphs: GraphSet) -> None:
    with atomic_write(file) as part:
        part.write(save({key: value.contiguous() for key, value in vars(graphs).items()}))
