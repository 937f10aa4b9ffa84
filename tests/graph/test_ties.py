"""Graphs and grids, graphs and softmax, low-rank logits: where graph masks meet the others."""

import sys

import pytest
import torch

from tests.graph.graphs import GRAPH, random_graph, random_tree
from tests.zoo import rand, randn
from vit_rpe.graph import (
    Diffusion,
    grid_edges,
    low_rank_logits,
    shortest_path_mask,
    shortest_paths,
    sine_factors,
    sine_spe,
    stochastic_factors,
)
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
    torch.testing.assert_close(mask.dense(), shortest_path_mask(grid_edges(grid), values).dense())


def test_shortest_paths_on_a_weighted_graph():
    edges = torch.tensor([[0, 1, 0, 1, 2, 0], [1, 2, 2, 2, 0, 1]])
    weight = torch.tensor([1.0, 1.0, 5.0, 0.5, 2.0, 3.0])
    expected = torch.tensor([[0, 1, 1.5, torch.inf], [2.5, 0, 0.5, torch.inf],
                             [2, 3, 0, torch.inf], [torch.inf] * 3 + [0]])  # fmt: skip
    torch.testing.assert_close(shortest_paths(edges, 4, weight).float(), expected)


def test_shortest_path_mask_takes_functions_and_tables():
    rate = rand(3).requires_grad_()
    mask = shortest_path_mask(GRAPH, lambda z: (-rate[:, None, None] * z).exp(), 11)
    assert mask.dense().shape == (3, 11, 11)
    apart = torch.isinf(shortest_paths(GRAPH, 11))
    assert apart.any() and (mask.dense()[:, apart] == 0).all()
    mask.dense().sum().backward()
    assert torch.isfinite(rate.grad).all()
    for f, weight, message in [
        (rand(2), None, r"need values of shape \(\.\.\., \d\) or more, got \(2,\)"),
        (rand(30), torch.ones(GRAPH.shape[1]), "without edge_weight"),
        (lambda z: z.sum(), None, r"keep the shape \(11, 11\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            shortest_path_mask(GRAPH, f, 11, weight)


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install vit_rpe\[graph\]"):
        shortest_paths(GRAPH, 11)


@pytest.mark.slow
def test_graph_masks_need_torch_alone():
    """Everything else works without the extra's packages."""
    import subprocess

    code = (
        "import sys; sys.modules.update(dict.fromkeys(['scipy', 'networkx', 'torch_geometric']))\n"
        "import torch\n"
        "from vit_rpe.graph import Diffusion, TreeFunction, WalkKernel, grid_edges, random_walks\n"
        "e = grid_edges((4,)); x = torch.ones(4, 1)\n"
        "Diffusion(e).matmul(x); TreeFunction(e, torch.ones(4)).matmul(x)\n"
        "WalkKernel(random_walks(e, 2, 3)).matmul(x)\n"
    )
    # timm, which registers models when vit_rpe is imported, must not need them either
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layer", [MaskedLinearAttention, MaskedSoftmaxAttention])
def test_graph_masks_in_layers(layer):
    n = 10
    mask = Diffusion(random_tree(n), torch.tensor([0.3, 2.0]), num_nodes=n)
    lam = torch.nn.Parameter(mask.lam.clone())
    attention = layer(8, num_heads=2, rpe=lambda: mask.with_values(lam=lam))
    attention(torch.randn(3, n, 8)).sum().backward()
    assert torch.isfinite(lam.grad).all() and (lam.grad != 0).all()


def test_softmax_far_along_a_path_is_finite():
    """Weights below round-off must not come out negative: their logarithm would be NaN."""
    n = 60
    for kind in ("laplacian", "normalized"):
        mask = Diffusion(grid_edges((n,)), torch.tensor(0.2), kind)
        assert (mask.dense() >= 0).all() and (mask.rows(0, n) >= 0).all()
        attention = MaskedSoftmaxAttention(4, num_heads=1, rpe=lambda mask=mask: mask)
        x = torch.randn(2, n, 4, requires_grad=True)
        out = attention(x)
        out.sum().backward()
        assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()


def test_softmax_under_the_adjacency_matrix_sees_neighbours_alone():
    n = 7
    edges = random_graph(n, 6)
    attention = MaskedSoftmaxAttention(
        4, num_heads=1, rpe=lambda: Sparse(edges, torch.ones(edges.shape[1]), n)
    ).eval()
    x = torch.randn(1, n, 4)
    moved = x.clone()
    moved[:, 3] += 1
    changed = (attention(x) - attention(moved)).abs().amax(-1)[0] > 1e-6
    neighbours = torch.zeros(n, dtype=torch.bool)
    neighbours[edges[0][edges[1] == 3]] = True
    assert changed.equal(neighbours)


# --- masks of low rank -------------------------------------------------------------------------


def test_sines_of_the_offset():
    frequencies, phases, gains = rand(2, 3), randn(2, 3), randn(2, 3)
    q, k = sine_factors(9, frequencies, phases, gains)
    offset = torch.arange(9)[:, None] - torch.arange(9)
    angle = 2 * torch.pi * frequencies[..., None, None] * offset + phases[..., None, None]
    expected = (gains[..., None, None].square() * angle.cos()).sum(1)
    torch.testing.assert_close(q @ k.mT, expected)
    with pytest.raises(ValueError, match="must have one shape"):
        sine_factors(9, frequencies, phases, gains[:, :2])


def test_stochastic_factors_are_unbiased():
    q, k = sine_factors(6, rand(3), randn(3), rand(3))
    draws = torch.stack(
        [a @ b.mT for a, b in (stochastic_factors(q, k, 50, seed) for seed in range(300))]
    )
    error = (draws.mean(0) - q @ k.mT).abs()
    assert (error <= 5 * draws.std(0) / 300**0.5).all()
    with pytest.raises(ValueError, match="realisations must be at least 1, got 0"):
        stochastic_factors(q, k, 0)


def test_exp_of_low_rank_logits():
    u, v = randn(8, 3) / 2, randn(8, 3) / 2
    exact = (u @ v.mT).exp()
    errors = [
        torch.stack(
            [(low_rank_logits(u, v, m, seed).dense() / exact - 1).square() for seed in range(20)]
        )
        .mean()
        .sqrt()
        for m in (16, 1024)
    ]
    assert errors[1] < 0.1 and errors[1] < errors[0] / 4
    assert (low_rank_logits(u, v, 16).dense() > 0).all()
    with pytest.raises(ValueError, match=r"one shape \(\.\.\., L, r\)"):
        low_rank_logits(u, v[:5], 16)


def test_sine_spe_is_the_exponential_of_its_logits():
    sines = rand(3), randn(3), torch.full((3,), 0.4, dtype=torch.float64)
    q, k = sine_factors(8, *sines)
    exact = (q @ k.mT).exp()
    assert exact.max() > 1.4 and exact.min() < 0.8
    mask = sine_spe(8, *sines, realisations=500, num_features=4000)
    torch.testing.assert_close(mask.dense(), exact, rtol=0.2, atol=0.0)
