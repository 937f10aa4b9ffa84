"""Sets of graphs of the TU collection, and the public folds of a fair comparison."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.io import read_tu_data
from torch_geometric.utils import degree

from vit_rpe.files import read_regular

from . import places
from .graph_set import GraphSet, pointers

FOLDS = 10
_CHEMICAL, _SOCIAL = "CHEMICAL", "COLLABORATIVE_DEGREE"  # folders of the public splits


@dataclass(frozen=True)
class Source:
    """The features of a set and the file of its folds; degrees where there are no labels."""

    labels: bool
    attributes: bool
    group: str
    splits: str


TU = {
    "ENZYMES": Source(True, True, _CHEMICAL, "ENZYMES"),
    "PROTEINS": Source(True, False, _CHEMICAL, "PROTEINS_full"),
    "NCI1": Source(True, False, _CHEMICAL, "NCI1"),
    "IMDB-BINARY": Source(False, False, _SOCIAL, "IMDB-BINARY"),
}


@dataclass(frozen=True)
class Fold:
    """Graphs to test on, and the others, divided to choose settings by."""

    test: Tensor
    train: Tensor
    val: Tensor


def tu_set(name: str, download: bool = False) -> GraphSet:
    """Read a set, `tu/NAME.npz` or the raw text files of PyG's `TUDataset`."""
    source = _source(name)
    candidates = (f"tu/{name}.npz", f"{name}/raw", f"tu/{name}/raw")
    if download and not any((places.data_folder() / each).exists() for each in candidates):
        places.download_tu(name)
    found = places.find("the TU set", name, candidates)
    with places.reading("TU set", found):
        if found.suffix == ".npz":
            return _read_npz(found, source)
        return _read_raw(found, name, source)


def tu_folds(name: str, download: bool = False) -> list[Fold]:
    """Read the ten folds of Errica et al. (2020)."""
    source = _source(name)
    file = f"{source.splits}_splits.json"
    candidates = (f"tu/splits/{file}", f"splits/{file}", file)
    if download and not any((places.data_folder() / each).exists() for each in candidates):
        places.download_splits(source.splits, source.group)
    found = places.find("the file of splits of", name, candidates)
    with places.reading("file of the folds of Errica et al.", found):
        folds = [_fold(each) for each in json.loads(read_regular(found))]
        if len(folds) != FOLDS:
            raise ValueError(f"{len(folds)} folds, wanted {FOLDS}")
        return folds


def _source(name: str) -> Source:
    if name not in TU:
        raise ValueError(f"TU set must be one of {', '.join(TU)}, got {name!r}")
    return TU[name]


def _fold(entry: dict[str, list]) -> Fold:
    inner = entry["model_selection"][0]
    parts = [torch.tensor(x) for x in (entry["test"], inner["train"], inner["validation"])]
    every = torch.cat(parts)
    if not every.sort().values.equal(torch.arange(len(every))):
        raise ValueError("a fold does not have every graph once, to test, train or validate on")
    return Fold(*parts)


def _read_npz(file: Path, source: Source) -> GraphSet:
    with np.load(file, allow_pickle=False) as stored:
        part = {key: torch.from_numpy(stored[key]) for key in stored.files}
    ptr, edges = part["graph_ptr"].long(), part["edge_index"].long()
    label = part["node_label"].long() if source.labels else None
    attributes = part["node_attr"].float() if source.attributes else None
    y = part["graph_label"].long()
    return _graph_set(edges, ptr, y, label, attributes)


def _read_raw(folder: Path, name: str, source: Source) -> GraphSet:
    data, slices, sizes = read_tu_data(str(folder), name)
    indicator = np.loadtxt(folder / f"{name}_graph_indicator.txt", dtype=np.int64)
    ptr = pointers(torch.from_numpy(np.bincount(indicator)[1:]))
    shift = ptr[:-1].repeat_interleave(slices["edge_index"].diff())
    label = attributes = None
    assert isinstance(data.edge_index, torch.Tensor) and isinstance(data.y, torch.Tensor)
    if data.x is not None:
        own = sizes["num_node_attributes"]
        attributes = data.x[:, :own] if source.attributes else None
        label = data.x[:, own:].argmax(1) if source.labels else None
    return _graph_set(data.edge_index + shift, ptr, data.y, label, attributes)


def _graph_set(
    edges: Tensor, ptr: Tensor, y: Tensor, label: Tensor | None, attributes: Tensor | None
) -> GraphSet:
    """Sort the edges by graph, in node numbers of each; join the features."""
    nodes = int(ptr[-1])
    for what, values in (("labels", label), ("attributes", attributes)):
        if values is not None and len(values) != nodes:
            raise ValueError(f"it has {nodes} nodes, but {what} of {len(values)}")
    if len(y) != len(ptr) - 1:
        raise ValueError(f"it has {len(ptr) - 1} graphs, but classes of {len(y)}")
    graph = torch.arange(len(ptr) - 1).repeat_interleave(ptr.diff())
    edges = edges[:, (edges[0] * nodes + edges[1]).argsort()]
    of_edge = graph[edges[0]]
    if not of_edge.equal(graph[edges[1]]):
        raise ValueError("an edge joins two graphs")
    parts = [one_hot(label - label.min()).float()] if label is not None else []
    parts += [attributes] if attributes is not None else []
    x = torch.cat(parts, 1) if parts else degree(edges[0], nodes)[:, None]
    edge_ptr = pointers(torch.bincount(of_edge, minlength=len(y)))
    return GraphSet(x, edges - ptr[of_edge], y, ptr, edge_ptr)
