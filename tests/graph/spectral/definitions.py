"""The matrices of diffusion kernels by scipy, from their definitions."""

import numpy as np
import pytest
import torch

pytest.importorskip("scipy.sparse", reason="needs scipy: pip install vit_rpe[graph]")
from scipy.sparse import csr_array, diags_array  # noqa: E402


def matrices(edges: torch.Tensor, n: int, weight: torch.Tensor | None = None) -> dict:
    """T of each kind as scipy's, from the definition."""
    values = np.ones(edges.shape[1]) if weight is None else weight.numpy()
    adjacency = csr_array((values, tuple(edges.numpy())), shape=(n, n))
    degree = np.asarray(adjacency.sum(1))
    laplacian = diags_array(degree) - adjacency
    inverse = diags_array(1 / np.where(degree > 0, degree, 1))
    return {"laplacian": laplacian, "normalized": laplacian @ inverse, "adjacency": -adjacency}
