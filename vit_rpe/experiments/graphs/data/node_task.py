"""Citation graphs with their public splits: Cora, Citeseer, Pubmed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from vit_rpe.masks import Mask

from . import places
from .planetoid import read_raw

CITATION = ("cora", "citeseer", "pubmed")
_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape", "y", "edge_index",
         "train_idx", "val_idx", "test_idx")  # fmt: skip


@dataclass
class NodeTask:
    """One graph whose nodes have classes: `x` (L, F) sparse, its rows sum to 1, or are 0."""

    x: Tensor
    edge_index: Tensor
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    mask: Mask | None = None
    batch: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.y)

    @property
    def num_classes(self) -> int:
        return int(self.y.max()) + 1


def citation(name: str, download: bool = False) -> NodeTask:
    """Read a citation graph, `planetoid/NAME.npz` or the raw files of PyG's `Planetoid`."""
    if name not in CITATION:
        raise ValueError(f"citation graph must be one of {', '.join(CITATION)}, got {name!r}")
    raw = f"{name.title()}/raw"
    candidates = (f"planetoid/{name}.npz", raw, f"{name}/raw", f"planetoid/{raw}")
    if download and not any((places.data_folder() / each).exists() for each in candidates):
        places.download_planetoid(name)
    found = places.find("the citation graph", name, candidates)
    with places.reading("citation graph", found):
        part = _read_npz(found) if found.suffix == ".npz" else read_raw(found, name)
        return _task(part)


def _read_npz(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as stored:
        part = {key: stored[key] for key in _KEYS}
    x = csr_matrix((part["x_data"], part["x_indices"], part["x_indptr"]), part["x_shape"])
    splits = {key: part[f"{key}_idx"] for key in ("train", "val", "test")}
    return {"x": x, "y": part["y"], "edge_index": part["edge_index"], **splits}


def _task(part: dict[str, Any]) -> NodeTask:
    """Check all parts against each other, and scale the rows of x."""
    x = csr_matrix(part["x"], dtype=np.float32)
    _check(part, len(part["y"]), x)
    x = x.multiply(1 / np.maximum(x.sum(1), 1e-12)).tocoo()
    sparse = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([x.row, x.col]).astype(np.int64)),
        torch.from_numpy(x.data.astype(np.float32)),
        x.shape,
        check_invariants=False,  # said, or torch warns
    ).coalesce()
    keys = ("edge_index", "y", "train", "val", "test")
    edges, y, train, val, test = (torch.from_numpy(np.asarray(part[k], np.int64)) for k in keys)
    return NodeTask(sparse, edges, y, train, val, test)


def _check(part: dict[str, Any], nodes: int, x: csr_matrix) -> None:
    if x.shape is None or x.shape[0] != nodes or not np.isfinite(x.data).all():
        raise ValueError(f"wanted finite features of its {nodes} nodes, got {x.shape}")
    if part["edge_index"].ndim != 2 or len(part["edge_index"]) != 2:
        raise ValueError(f"edge_index must be (2, E), got {part['edge_index'].shape}")
    for name in ("edge_index", "train", "val", "test"):
        if not np.isin(part[name], np.arange(nodes)).all():
            raise ValueError(f"{name} has numbers that none of its {nodes} nodes has")
    if not np.isin(part["y"], np.arange(nodes)).all():
        raise ValueError("y has numbers that are no classes")
    chosen = np.concatenate([part[name] for name in ("train", "val", "test")])
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("train, val and test have nodes in common")
