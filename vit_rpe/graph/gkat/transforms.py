"""A PyG transform that draws the walks of each graph of a data set once. Needs torch-geometric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from vit_rpe.masks.helpers import SparseMatrix, row_starts

from ..edges import as_graph
from ..identity import edge_fingerprints, graph_digest
from ..walks.kernel import WalkKernel
from ..walks.visits import Visits
from ..walks.walks import random_walks


class AddRandomWalks(BaseTransform):
    """A transform that adds the nodes that random walks visit.

    `walk_index` (2, V) has the pairs of a node and one that its walks have visited, `walk_count`
    (V, T + 1) how often at each step. PyG joins them like edges when it makes a batch, and
    `walk_mask(batch)` is then the mask of all its graphs, block by block. `walk_graph` (1, 2), the
    number of nodes and a fingerprint of the edges, identifies the graph: a transform that changes
    the graph comes before this one, else `walk_mask` refuses the walks. Walks are drawn once for
    each graph and kept, by a digest of its edges, so that the transform costs nothing from the
    second epoch on; `save` and `load` keep them between runs. The digest is part of the seed: the
    order of graphs does not matter.
    """

    def __init__(self, num_walks: int = 20, num_steps: int = 3, seed: int = 0):
        self.num_walks, self.num_steps, self.seed = num_walks, num_steps, seed
        self._cache: dict[str, tuple[Tensor, Tensor]] = {}

    def forward(self, data: Any) -> Any:
        weight = data.edge_weight if "edge_weight" in data else None
        n = int(data.num_nodes or 0)
        key = graph_digest(data.edge_index, weight, num_nodes=n)
        if key not in self._cache:
            self._cache[key] = self._draw(data.edge_index, weight, n, int(key[:12], 16))
        data.walk_index, data.walk_count = self._cache[key]
        data.walk_graph = _graphs(data)
        return data

    def _draw(
        self, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, key: int
    ) -> tuple[Tensor, Tensor]:
        if num_nodes == 0:
            steps = self.num_steps + 1
            return torch.empty(2, 0, dtype=torch.int64), torch.empty(0, steps, dtype=torch.uint8)
        walks = random_walks(
            edge_index, edge_weight, num_nodes=num_nodes,
            num_walks=self.num_walks, num_steps=self.num_steps, seed=self.seed + key,
        )  # fmt: skip
        visits = Visits.of(walks)
        pair = torch.stack([visits.pattern.row, visits.pattern.column]).long()
        return pair, visits.entries.mT.contiguous()

    def save(self, file: str | Path) -> None:
        """Write all walks so far into one safetensors file."""
        tensors = {}
        for key, (index, count) in self._cache.items():
            tensors[f"{key}.index"], tensors[f"{key}.count"] = index, count
        save_file(tensors, file, metadata={"walks": self._settings()})

    def load(self, file: str | Path) -> None:
        """Read the walks of a file that `save` has made with the same settings."""
        try:
            with safe_open(file, "pt") as stored:
                made = (stored.metadata() or {}).get("walks")
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file}: no walks to load ({error})") from error
        if made != self._settings():
            raise ValueError(f"{file} has the walks of {made}, wanted {self._settings()}")
        keys = {name.partition(".")[0] for name in tensors}
        self._cache |= {k: (tensors[f"{k}.index"], tensors[f"{k}.count"]) for k in keys}

    def _settings(self) -> str:
        """Describe the walks as files do. The text is part of their format and must not change."""
        walks = f"num_walks={self.num_walks}, length={self.num_steps}"
        return f"RandomWalkMask({walks}, lam=1.0, alpha=1.0, seed={self.seed})"

    def __repr__(self) -> str:
        return f"AddRandomWalks({self.num_walks}, {self.num_steps}, {self.seed})"


def walk_mask(
    data: Data | Any,
    lam: float | Tensor = 1.0,
    alpha: float = 1.0,
    *,
    nonnegative: bool | None = None,
) -> WalkKernel:
    """Make RWGNK of a graph, or of a batch of graphs, that went through `AddRandomWalks`.

    The mask knows the graphs of its batch. `nonnegative` is for a `lam` that is a tensor: the
    promise that it stays so.
    """
    if "walk_index" not in data or "walk_count" not in data:
        raise ValueError("data has no walk_index and walk_count: apply AddRandomWalks first")
    _check_graphs(data)
    index, count = data.walk_index, data.walk_count
    graph = as_graph(index, num_nodes=data.num_nodes, undirected=False, name="walk_index")
    n = graph.num_nodes
    if count.ndim != 2 or len(count) != index.shape[1]:
        raise ValueError(
            f"walk_count must be (visited, steps) for {index.shape[1]} visited, "
            f"got {tuple(count.shape)}"
        )
    key = index[0] * n + index[1]
    if (key.diff() <= 0).any():  # PyG keeps the order; others may not
        order = torch.argsort(key)
        index, count = index[:, order], count[order]
    pattern = SparseMatrix.from_sorted(row_starts(index[0], n), index[1], (n, n))
    # at step 0 every walk is at its own node
    visits = Visits(pattern, count.mT.contiguous(), int(count[:, 0].max()))
    mask = WalkKernel(visits, lam, alpha, nonnegative=nonnegative)
    sizes = data.ptr.diff().tolist() if "ptr" in data else [n]
    return mask.in_parts(sizes)  # pyright: ignore[reportReturnType]


def _graphs(data: Any) -> Tensor:
    """List the number of nodes and the fingerprint of the edges of each graph, (B, 2)."""
    edges = data.edge_index
    ptr = data.ptr if "ptr" in data else edges.new_tensor([0, data.num_nodes or 0])
    weight = data.edge_weight if "edge_weight" in data else None
    return torch.stack([ptr.diff(), edge_fingerprints(edges, weight, ptr=ptr)], 1)


def _check_graphs(data: Any) -> None:
    """Raise ValueError if the walks were drawn on another graph than this one."""
    if "walk_graph" not in data or "edge_index" not in data:  # there is nothing to compare
        return
    walked, here = data.walk_graph, _graphs(data)
    if walked.equal(here):
        return
    graph = ""
    if walked.shape == here.shape and len(here) > 1:
        graph = f"graph {int((walked == here).all(1).long().argmin())} of the batch: "
    raise ValueError(
        f"{graph}walk_index is that of another graph: its nodes, edges or weights have changed "
        "since; apply AddRandomWalks after whatever changes them"
    )
