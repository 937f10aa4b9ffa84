"""Diffusion keeps the error that it was asked for, and agrees with scipy."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.graphs import EMPTY, random_graph, random_tree, symmetric_weights
from tests.graph.spectral.definitions import matrices
from tests.planetoid import planetoid
from tests.zoo import rand, randn
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.reference import masked_attention
from vit_rpe.graph import Diffusion, both_directions
from vit_rpe.graph.spectral.operator import KINDS

linalg = pytest.importorskip("scipy.sparse.linalg", reason="needs scipy")


@given(
    n=st.integers(1, 30),
    edges=st.integers(0, 60),
    lam=st.floats(-1, 4),
    kind=st.sampled_from(sorted(KINDS)),
    log_tol=st.integers(-13, -2),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_the_error_is_as_asked_for(n, edges, lam, kind, log_tol, weighted, seed):
    torch.manual_seed(seed)
    graph = random_graph(n, edges, loops=True)
    weight = symmetric_weights(graph) if weighted else None
    tol = 10.0**log_tol
    mask = Diffusion(graph, weight, num_nodes=n, lam=lam, kind=kind, tol=tol)
    exact = torch.matrix_exp(-lam * torch.from_numpy(matrices(graph, n, weight)[kind].toarray()))
    torch.testing.assert_close(mask.dense(), exact)
    x = randn(n, 3)
    error = torch.linalg.vector_norm(mask.matmul(x) - exact @ x, dim=0)
    norm = torch.linalg.matrix_norm(exact, 2)
    allowed = (tol + 1e-14) * norm * torch.linalg.vector_norm(x, dim=0)
    assert (error <= allowed).all()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_scipys_expm_multiply(kind):
    n = 3000
    hub = torch.stack([torch.zeros(300, dtype=torch.int64), torch.arange(1, 301)])
    edges = torch.cat([random_graph(n, 6000), both_directions(hub)], 1)
    lam = torch.tensor([0.5, 2.0], dtype=torch.float64)
    x = randn(n, 2)
    mask = Diffusion(edges, num_nodes=n, lam=lam, kind=kind)
    out, matrix = mask.matmul(x), matrices(edges, n)[kind]
    for head, value in enumerate(lam.tolist()):
        expected = torch.from_numpy(linalg.expm_multiply(-value * matrix, x.numpy()))
        norm = float(mask.operator.norm(lam)[head])
        error = torch.linalg.vector_norm(out[head] - expected, dim=0)
        assert (error <= 1e-8 * norm * torch.linalg.vector_norm(x, dim=0)).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pubmed(kind):
    """Its largest degree is 171, the spectral radius of its adjacency matrix 23."""
    edges, n = planetoid("pubmed")
    x = randn(n, 2)
    mask = Diffusion(edges, num_nodes=n, kind=kind)
    expected = torch.from_numpy(linalg.expm_multiply(-matrices(edges, n)[kind], x.numpy()))
    error = torch.linalg.vector_norm(mask.matmul(x) - expected, dim=0)
    norm = float(mask.operator.norm(mask.lam))
    assert (error <= 1e-8 * norm * torch.linalg.vector_norm(x, dim=0)).all()
    if kind == "adjacency":
        radius = linalg.eigsh(matrices(edges, n)[kind], 1, return_eigenvectors=False)[0]
        assert abs(radius) == pytest.approx(23.3, abs=0.5)
        assert abs(radius) <= -mask.operator.interval.low <= 1.05 * abs(radius)


def test_faint_rows_are_right_not_noise():
    """The norm of exp(Adj) is that of the hub, exp(20); two nodes elsewhere know nothing of it."""
    hub = torch.stack([torch.zeros(400, dtype=torch.int64), torch.arange(1, 401)])
    edges = both_directions(torch.cat([hub, torch.tensor([[401], [402]])], 1))
    q, k, v = rand(403, 3), rand(403, 3), randn(403, 2)

    def attend(tol, path, wide_range):
        mask = Diffusion(edges, kind="adjacency", tol=tol)
        return masked_linear_attention(q, k, v, mask, path=path, wide_range=wide_range)

    exact = masked_attention(q, k, v, Diffusion(edges, kind="adjacency"))
    assert (exact[401:] != 0).all()
    for tol in (1e-8, 1e-16):
        for path in ("explicit", "product"):
            for wide_range in (True, False):
                torch.testing.assert_close(attend(tol, path, wide_range), exact)
    # beyond the round-off of float64 itself the rows are empty in the matrix, too
    mask = Diffusion(edges, lam=2.0, kind="adjacency")
    assert (mask.dense()[401:] == 0).all() and (mask.rows(401, 403) == 0).all()


def test_what_the_kinds_conserve():
    edges = random_graph(12, 20, loops=True)
    ones = torch.ones(15, dtype=torch.float64)
    dense = {k: Diffusion(edges, num_nodes=15, lam=0.8, kind=k).dense() for k in KINDS}
    torch.testing.assert_close(dense["laplacian"].sum(1), ones)
    torch.testing.assert_close(dense["normalized"].sum(0), ones)
    assert (dense["adjacency"] >= -1e-12).all()


def test_more_time_is_flatter():
    edges = random_tree(10)
    near, far = (Diffusion(edges, lam=lam).dense() for lam in (0.1, 1000.0))
    assert near.diagonal().min() > 0.5
    torch.testing.assert_close(far, torch.full_like(far, 0.1))


def test_isolated_nodes_and_no_edges():
    x = randn(4, 2)
    for kind in KINDS:
        torch.testing.assert_close(Diffusion(EMPTY, num_nodes=4, lam=2.0, kind=kind).matmul(x), x)
        mask = Diffusion(both_directions(torch.tensor([[0], [1]])), num_nodes=4, lam=2.0, kind=kind)
        torch.testing.assert_close(mask.matmul(x)[2:], x[2:])


def test_a_batch_is_its_graphs():
    graphs = [random_graph(6, 9), random_tree(8), EMPTY]
    sizes, x = [6, 8, 2], randn(16, 3)
    offsets = [0, 6, 14]
    batch = torch.cat([g + o for g, o in zip(graphs, offsets, strict=True)], 1)
    for kind in KINDS:
        whole = Diffusion(batch, num_nodes=16, lam=0.7, kind=kind).matmul(x)
        parts = [
            Diffusion(g, num_nodes=n, lam=0.7, kind=kind).matmul(p)
            for g, n, p in zip(graphs, sizes, x.split(sizes), strict=True)
        ]
        torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-6, atol=1e-6)


def test_the_gradient_of_time():
    """The gradient of lam is that of -T M x, not a sum over the expansion."""
    edges = random_graph(10, 20)
    lam = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    x, g = randn(10, 2), randn(10, 2)
    (grad,) = torch.autograd.grad(Diffusion(edges, num_nodes=10, lam=lam).matmul(x), lam, g)
    mask = Diffusion(edges, num_nodes=10, lam=0.6)
    expected = -(g * (mask.operator.dense() @ mask.dense() @ x)).sum()
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "heat"}, "kind must be one of laplacian, normalized, adjacency, got 'heat'"),
        ({"tol": 0.0}, "tol must be at least 1e-16"),
        ({"tol": 2.0}, "less than 1, got 2.0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Diffusion(random_tree(3), **options)


def test_overflow_is_named():
    mask = Diffusion(random_tree(4, "path"), lam=60.0, kind="adjacency")
    assert torch.isfinite(mask.matmul(randn(4, 1))).all()
    with pytest.raises(ValueError, match="overflows torch.float32: lam is .60.0., and T has eige"):
        mask.matmul(torch.ones(4, 1))


def test_a_lam_that_diverged_is_named():
    mask = Diffusion(random_tree(3), lam=torch.tensor([0.5, torch.nan]))
    with pytest.raises(ValueError, match="lam must be finite, got nan"):
        mask.matmul(randn(3, 1))
    with pytest.raises(ValueError, match=r"Diffusion\.lam has 1 values that are not finite"):
        mask.check()
