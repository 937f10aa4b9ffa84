"""The closed form of hypercubes is diffusion on their graphs."""

import pytest
import torch

from tests.zoo import rand, randn
from vit_rpe.graph import Diffusion, Hypercube, hypercube_edges
from vit_rpe.masks import csr


@pytest.mark.parametrize("dim", [0, 1, 5])
def test_hypercube_is_diffusion_on_its_graph(dim, monkeypatch):
    lam = rand(3)
    monkeypatch.setattr(csr, "_CACHE", 64)  # eight columns at a time
    cube = Hypercube(dim, lam)
    mask = Diffusion(hypercube_edges(dim), num_nodes=2**dim, lam=lam)
    torch.testing.assert_close(cube.dense(), mask.dense())
    x = randn(3, 2**dim, 20)
    torch.testing.assert_close(cube.matmul(x), mask.matmul(x))
    if dim == 5:
        bits = torch.tensor([0.0, 1, 1, 2]).double()
        ratio = cube.dense()[:, 0, :4] / cube.dense()[:, 0, :1]
        torch.testing.assert_close(ratio, lam.tanh()[:, None] ** bits)
