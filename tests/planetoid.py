"""Citation graphs from the folder that VIT_RPE_DATA names; tests skip without it."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor


def planetoid(name: str) -> tuple[Tensor, int]:
    """edge_index and the number of nodes."""
    file = Path(os.environ.get("VIT_RPE_DATA", "")) / "planetoid" / f"{name}.npz"
    if "VIT_RPE_DATA" not in os.environ or not file.exists():
        pytest.skip(f"needs planetoid/{name}.npz in the folder that VIT_RPE_DATA names")
    with np.load(file, allow_pickle=False) as data:
        return torch.from_numpy(data["edge_index"]).long(), len(data["y"])
