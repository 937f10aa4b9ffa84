"""Time and memory of one layer (paper, Sec. 5.3): GKAT, its exact forms, dense GAT, PyG's GAT.

One head of 16 channels, 16 channels in. Walks are drawn before. Motif graphs and trees come in
batches of 32, as in training; the dense forms then take one matrix for each graph. On one large
graph GKAT-0 and dense GAT form the L x L matrix: Pubmed's are left out where memory is short.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import DenseGATConv, GATConv
from torch_geometric.utils import to_dense_adj, to_dense_batch

from vit_rpe.graph import RWGNK, GKATConv
from vit_rpe.masks import Dense
from vit_rpe.measuring import in_turns, peak_mb

from ..cells import Cell, Record
from ..data import GraphBatch, citation, cycle_set, motif_set
from ..masks import Walked

NAME = "speed"
CHANNELS, BATCH = 16, 32
MOTIF_CASES = ("caveman", "cycle", "grid", "ladder")
CASES = (*MOTIF_CASES, "tree", "citeseer", "pubmed")
DENSE_BYTES = 40  # of an L x L form, per entry, forward and backward, as seen
EXACT, DENSE_GAT, SPARSE_GAT = "GKAT-0", "dense GAT", "PyG's GATConv"

Call = Callable[[Tensor], Tensor]


def cells(done: Sequence[Record], quick: bool = False) -> list[Cell]:
    """Return a cell for each case."""
    seconds = 0.3 if quick else 30.0
    return [_cell(name, seconds) for name in (CASES[:1] if quick else CASES)]


def _cell(name: str, seconds: float) -> Cell:
    settings = {"channels": CHANNELS, "num_walks": 50, "num_steps": 5 if name == "tree" else 3,
                "batch": 1 if name in CASES[-2:] else BATCH, "seconds": seconds}  # fmt: skip
    return Cell(NAME, {"part": "layer", "case": name}, settings, lambda: run(name, settings), 9)


def run(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Measure all layers in turns: medians of a training step and of inference, peak memory."""
    torch.manual_seed(0)
    data = _data(name, settings)
    x, layers = torch.randn(data.num_nodes, CHANNELS), contestants(data, settings)
    calls: dict[str, Callable[[], object]] = {}
    for key, (layer, call) in layers.items():
        calls[f"{key}|train"] = lambda layer=layer, call=call: _step(layer, call, x)
        calls[f"{key}|infer"] = lambda call=call: _infer(call, x)
    memory = {key: peak_mb(calls[f"{key}|train"], "cpu") for key in layers}
    times = in_turns(calls, settings["seconds"], "cpu", 0, fewest=3)
    return {
        "nodes": data.num_nodes,
        "edges": data.edge_index.shape[1],
        "layers": {
            key: {
                "train_ms": 1e3 * median(times[f"{key}|train"]),
                "infer_ms": 1e3 * median(times[f"{key}|infer"]),
                "peak_mb": memory[key],
            }
            for key in layers
        },
    }


def _data(name: str, settings: dict[str, Any]) -> GraphBatch:
    """Return one graph or a batch, with its mask, and the mask in dense form."""
    walks = RWGNK(settings["num_walks"], settings["num_steps"])
    count = settings["batch"]
    if count > 1:
        graphs = cycle_set(count // 2, 0) if name == "tree" else motif_set(name, count // 2, 0)
        return Walked(graphs, walks).batch(torch.arange(count))
    task = citation(name)
    nodes = torch.zeros(task.num_nodes, dtype=torch.int64)
    data = GraphBatch(task.x, task.edge_index, task.y, nodes, torch.tensor([0, len(nodes)]))
    data.mask = walks(task.edge_index, num_nodes=len(nodes))
    return data


def contestants(data: GraphBatch, settings: dict[str, Any]) -> dict[str, tuple[nn.Module, Call]]:
    """Return the layers, and how each is called on x (L, channels)."""

    def ours(**options: Any) -> tuple[nn.Module, Call]:
        conv = GKATConv(CHANNELS, CHANNELS, bias=False, **options)
        return conv, lambda x: conv(x, mask=data.mask, batch=data.batch)

    gat = GATConv(CHANNELS, CHANNELS)
    found: dict[str, tuple[nn.Module, Call]] = {
        "GKAT m=16": ours(feature_map="softmax", num_features=16, exact_kernel=False),
        "GKAT additive": ours(feature_map="additive"),
        SPARSE_GAT: (gat, lambda x: gat(x, data.edge_index)),
    }
    if settings["batch"] > 1:
        return {**found, EXACT: ours(exact_kernel=True), **_dense_gat(data)}
    found["GKAT m=256"] = ours(feature_map="softmax", num_features=256, exact_kernel=False)
    nodes = data.num_nodes
    if DENSE_BYTES * nodes**2 < _free_bytes():
        found |= {EXACT: _explicit(data), **_dense_gat(data)}
    return found


def _explicit(data: GraphBatch) -> tuple[nn.Module, Call]:
    """GKAT-0 under a mask that was made dense before, some rows at a time."""
    nodes = data.num_nodes
    step = max(1, (64 << 20) // nodes)
    assert data.mask is not None
    rows = [data.mask.rows(i, min(i + step, nodes)).float() for i in range(0, nodes, step)]
    dense = Dense(torch.cat(rows))
    conv = GKATConv(CHANNELS, CHANNELS, bias=False, exact_kernel=True)
    return conv, lambda x: conv(x, mask=dense)


def _dense_gat(data: GraphBatch) -> dict[str, tuple[nn.Module, Call]]:
    adjacency = to_dense_adj(data.edge_index, data.batch)
    layer = DenseGATConv(CHANNELS, CHANNELS)
    if len(adjacency) == 1:
        return {DENSE_GAT: (layer, lambda x: layer(x[None], adjacency)[0])}
    _, there = to_dense_batch(torch.zeros(len(data.batch), 1), data.batch)

    def call(x: Tensor) -> Tensor:
        padded, _ = to_dense_batch(x, data.batch)
        return layer(padded, adjacency, there)[there]

    return {DENSE_GAT: (layer, call)}


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _step(layer: nn.Module, call: Call, x: Tensor) -> None:
    layer.zero_grad()
    call(x.detach().requires_grad_()).square().mean().backward()


@torch.no_grad()
def _infer(call: Call, x: Tensor) -> Tensor:
    return call(x)
