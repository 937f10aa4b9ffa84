"""Raw files of Planetoid, as PyG keeps them: pickles, of which nothing is executed."""

from __future__ import annotations

import pickle
from collections import defaultdict
from copyreg import _reconstructor  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

_array = np.array([0]).__reduce__()[0]  # the function that makes arrays, wherever numpy keeps it


def _as_bytes(text: str, _encoding: str) -> bytes:
    """Make the bytes that Python 3 writes as text where it writes for Python 2."""
    return text.encode("latin1")


_PLAIN: dict[tuple[str, str], Any] = {  # all that these files may name
    ("_codecs", "encode"): _as_bytes,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("__builtin__", "object"): object,
    ("builtins", "object"): object,
    ("copy_reg", "_reconstructor"): _reconstructor,
    ("copyreg", "_reconstructor"): _reconstructor,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("scipy.sparse.csr", "csr_matrix"): csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): csr_matrix,
}


class _Unpickler(pickle.Unpickler):
    """Makes arrays, sparse matrices, lists and dicts, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _PLAIN[module, name]


def read_plain(file: Path) -> Any:
    """Read a pickle of arrays, matrices, lists and dicts."""
    try:
        with file.open("rb") as stream:
            return _Unpickler(stream, encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{file} is no file of Planetoid: {error}") from error


def read_raw(folder: Path, name: str) -> dict[str, Any]:
    """Read x (sparse), y, the neighbors of each node, and the public split."""
    parts = {
        part: read_plain(folder / f"ind.{name}.{part}")
        for part in ("tx", "allx", "y", "ty", "ally", "graph")
    }
    test = np.loadtxt(folder / f"ind.{name}.test.index", dtype=np.int64)
    known = parts["allx"].shape[0]
    place = test - known  # of the rows of tx and ty; Citeseer's have gaps: nodes without an edge
    rows = int(place.max()) + 1
    moved = csr_matrix((np.ones(len(test)), (place, np.arange(len(test)))), (rows, len(test)))
    y = np.concatenate([parts["ally"], moved @ parts["ty"]]).argmax(1)
    labelled = len(parts["y"])
    return {
        "x": csr_matrix(vstack([parts["allx"], moved @ csr_matrix(parts["tx"])])),
        "y": y,
        "edge_index": _edges(parts["graph"], known + rows),
        "train": np.arange(labelled),
        "val": np.arange(labelled, labelled + 500),
        "test": np.sort(test),
    }


def _edges(graph: dict[int, list[int]], nodes: int) -> NDArray[np.int64]:
    """Return each edge once in each direction, sorted, without loops."""
    source = np.repeat(list(graph), [len(others) for others in graph.values()]).astype(np.int64)
    target = np.concatenate([np.asarray(others, np.int64) for others in graph.values()])
    both = np.concatenate([source * nodes + target, target * nodes + source])
    pairs = np.stack(np.divmod(np.unique(both), nodes))
    return pairs[:, pairs[0] != pairs[1]]
