"""Where data sets are: the folder that VIT_RPE_DATA names, a root of PyG's, or a download."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

from torch_geometric.data import download_url, extract_zip
from torch_geometric.datasets import Planetoid, TUDataset

from vit_rpe.files import cache_folder

SPLITS = "https://raw.githubusercontent.com/diningphil/gnn-comparison/master/data_splits"
_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    EOFError,
    BadZipFile,
    zlib.error,
    IsADirectoryError,
)  # what reading a file may raise that is not as it should be
PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def data_folder() -> Path:
    """Return the folder that VIT_RPE_DATA names, else the one that downloads go to."""
    given = os.environ.get("VIT_RPE_DATA")
    return Path(given) if given else cache_folder() / "data"


def find(kind: str, name: str, candidates: Sequence[str]) -> Path:
    """Return the first of some paths in the data folder that is there."""
    root = data_folder()
    for each in candidates:
        if (root / each).exists():
            return root / each
    advice = "" if os.environ.get("VIT_RPE_DATA") else "VIT_RPE_DATA names another folder, "
    raise FileNotFoundError(
        f"{kind} {name} is not there: {root} has none of {', '.join(candidates)}; "
        f"{advice}--download fetches it"
    )


@contextmanager
def reading(what: str, file: Path) -> Iterator[None]:
    """Let whatever a file that is damaged or another one raises be a ValueError that names it."""
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{file} is no {what}: {error}") from error


def download_planetoid(name: str) -> None:
    """Fetch what PyG's `Planetoid(root, name)` fetches, to where it is then found."""
    raw = data_folder() / name.title() / "raw"
    for part in PLANETOID_PARTS:
        download_url(f"{Planetoid.url}/ind.{name}.{part}", str(raw), log=False)


def download_tu(name: str) -> None:
    """Fetch what PyG's `TUDataset(root, name)` fetches, and the public splits."""
    folder = data_folder() / name
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    archive = Path(download_url(f"{TUDataset.url}/{name}.zip", str(folder), log=False))
    extract_zip(str(archive), str(folder), log=False)
    for file in (folder / name).glob("*.txt"):
        file.replace(folder / "raw" / file.name)
    archive.unlink()


def download_splits(name: str, group: str) -> None:
    """Fetch the outer folds and inner holdouts of Errica et al. (2020)."""
    download_url(f"{SPLITS}/{group}/{name}_splits.json", str(data_folder() / "splits"), log=False)
