"""Graphs and grids, graphs and softmax: where graph masks meet the others."""

import sys

import pytest
import torch

from tests.graph.graphs import random_graph, random_tree
from tests.zoo import randn
from vit_rpe.graph import Diffusion, grid_edges, shortest_path_mask, shortest_paths
from vit_rpe.layers import MaskedLinearAttention, MaskedSoftmaxAttention
from vit_rpe.masks import Sparse
from vit_rpe.rpe import DistanceRPE


@pytest.mark.parametrize("grid", [(5,), (3, 4), (2, 3, 2)])
def test_distance_rpe_is_the_shortest_path_mask_of_the_grid(grid):
    rpe = DistanceRPE(grid, 2, init="decay").double()
    with torch.no_grad():
        rpe.table.copy_(randn(*rpe.table.shape))
    mask = rpe()
    first_row = mask.rows(0, 1)[:, 0]  # all distances occur from the corner
    distance = shortest_paths(grid_edges(grid))[0].long()
    values = first_row.new_zeros(2, int(distance.max()) + 1)
    values[:, distance] = first_row
    torch.testing.assert_close(mask.dense(), shortest_path_mask(grid_edges(grid), f=values).dense())


@pytest.mark.slow
def test_graph_masks_need_only_torch():
    """Everything else works without the extra's packages."""
    import subprocess

    code = (
        "import sys; sys.modules.update(dict.fromkeys(['scipy', 'networkx', 'torch_geometric']))\n"
        "import torch\n"
        "from vit_rpe.graph import Diffusion, TreeFunction, WalkKernel, grid_edges, random_walks\n"
        "e = grid_edges((4,)); x = torch.ones(4, 1)\n"
        "Diffusion(e).matmul(x); TreeFunction(e, torch.ones(4)).matmul(x)\n"
        "WalkKernel(random_walks(e, num_walks=2, num_steps=3)).matmul(x)\n"
    )
    # timm, which registers models when vit_rpe is imported, must not need them either
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layer", [MaskedLinearAttention, MaskedSoftmaxAttention])
def test_graph_masks_in_layers(layer):
    n = 10
    lams = torch.tensor([0.3, 2.0])
    mask = Diffusion(random_tree(n), num_nodes=n, lam=lams, nonnegative=True)
    lam = torch.nn.Parameter(mask.lam.clone())
    attention = layer(8, num_heads=2, rpe=lambda: mask.with_values(lam=lam))
    attention(torch.randn(3, n, 8)).sum().backward()
    assert torch.isfinite(lam.grad).all() and (lam.grad != 0).all()


def test_softmax_far_along_a_path_is_finite():
    """Weights below round-off must not come out negative: their logarithm would be NaN."""
    n = 60
    for kind in ("laplacian", "normalized"):
        mask = Diffusion(grid_edges((n,)), lam=torch.tensor(0.2), kind=kind, nonnegative=True)
        mask.check()
        assert (mask.dense() >= 0).all() and (mask.rows(0, n) >= 0).all()
        attention = MaskedSoftmaxAttention(4, num_heads=1, rpe=lambda mask=mask: mask)
        x = torch.randn(2, n, 4, requires_grad=True)
        out = attention(x)
        out.sum().backward()
        assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()


def test_softmax_under_the_adjacency_matrix_sees_only_neighbors():
    n = 7
    edges = random_graph(n, 6)
    attention = MaskedSoftmaxAttention(
        4, num_heads=1, rpe=lambda: Sparse(edges, torch.ones(edges.shape[1]), n, nonnegative=True)
    ).eval()
    x = torch.randn(1, n, 4)
    moved = x.clone()
    moved[:, 3] += 1
    changed = (attention(x) - attention(moved)).abs().amax(-1)[0] > 1e-6
    neighbors = torch.zeros(n, dtype=torch.bool)
    neighbors[edges[0][edges[1] == 3]] = True
    assert changed.equal(neighbors)
