"""Walks are where they should be as often as they should be, and kernels are their averages."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.graphs import EMPTY, random_graph, random_tree, symmetric_weights
from tests.planetoid import planetoid
from tests.zoo import rand, randn
from vit_rpe.graph import (
    SeriesKernel,
    WalkKernel,
    both_directions,
    expected_walk_kernel,
    random_walks,
    series_root,
)
from vit_rpe.graph import visits as visits_module
from vit_rpe.graph.visits import Visits, dense_features

STAR = both_directions(torch.tensor([[0, 0, 0], [1, 2, 3]]))


def transitions(edges: torch.Tensor, n: int, weight: torch.Tensor | None = None) -> torch.Tensor:
    matrix = torch.zeros(n, n, dtype=torch.float64)
    weight = torch.ones(edges.shape[1], dtype=torch.float64) if weight is None else weight
    matrix.index_put_(tuple(edges), weight, accumulate=True)
    return matrix / matrix.sum(1, keepdim=True).clamp(min=1e-300)


def step_frequencies(walks, n: int) -> torch.Tensor:
    """How often step t of the walks from i is at j: (T + 1, L, L)."""
    eye = torch.eye(walks.steps + 1, dtype=torch.float64)
    return torch.stack([dense_features(walks, row) for row in eye])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("stop", [0.0, 0.3])
def test_frequencies_are_powers_of_the_transition_matrix(weighted, stop):
    n = 7
    edges = random_graph(6, 9)
    weight = symmetric_weights(edges) if weighted else None
    walks = random_walks(edges, 20_000, 3, n, edge_weight=weight, stop=stop, seed=3)
    expected = torch.eye(n, dtype=torch.float64)
    for frequency in step_frequencies(walks, n):
        assert (frequency - expected).abs().max() < 5 * 0.5 / 20_000**0.5
        expected = (1 - stop) * transitions(edges, n, weight) @ expected


def test_weights_decide_and_zero_is_a_closed_road():
    weight = torch.tensor([0.0, 1.0, 3.0, 0.0, 1.0, 3.0])
    walks = random_walks(STAR, 20_000, 1, 5, edge_weight=weight)
    counts = torch.bincount(walks.nodes[0, :, 1], minlength=5) / 20_000
    torch.testing.assert_close(counts, torch.tensor([0, 0, 0.25, 0.75, 0]), atol=0.02, rtol=0)
    assert (walks.nodes[1, :, 1] == -1).all()  # its only edge weighs nothing


def test_tiny_weights_beside_large_ones():
    weight = torch.tensor([1e8, 1e-30, 3e-30, 1e8, 1e-30, 3e-30], dtype=torch.float64)
    edges = both_directions(torch.tensor([[0, 2, 2], [1, 3, 4]]))
    walks = random_walks(edges, 20_000, 1, 5, edge_weight=weight)
    share = (walks.nodes[2, :, 1] == 4).double().mean()
    assert abs(share - 0.75) < 0.02 and (walks.nodes[2, :, 1] > 2).all()


def test_isolated_nodes_stay_where_they_are():
    for edges in (STAR, EMPTY):
        walks = random_walks(edges, 3, 4, 6)
        assert (walks.nodes[4:, :, 0] == torch.tensor([[4], [5]])).all()
        assert (walks.nodes[4:, :, 1:] == -1).all() and (walks.importance()[4:, :, 1:] == 0).all()
        mask = WalkKernel(walks, 0.5)
        torch.testing.assert_close(mask.dense()[4:, 4:], torch.eye(2).double())
        assert torch.isfinite(mask.dense()).all()


def test_the_seed_decides():
    edges = random_graph(20, 40)
    walks = [random_walks(edges, 4, 5, 20, seed=seed).nodes for seed in (1, 1, 2)]
    assert walks[0].equal(walks[1]) and not walks[0].equal(walks[2])


def test_lengths():
    edges = random_graph(10, 30)
    assert random_walks(edges, 2, 0, 10).nodes.shape == (10, 2, 1)
    until_the_end = random_walks(edges, 500, None, 10, stop=0.5)
    lengths = (until_the_end.nodes >= 0).sum(-1) - 1
    assert abs(lengths.double().mean() - 1.0) < 0.1  # (1 - p) / p
    assert (random_walks(edges, 3, 4, 10, stop=1.0).nodes[..., 1:] == -1).all()


def test_walks_follow_the_direction_of_edges():
    walks = random_walks(torch.tensor([[0, 1], [1, 2]]), 1, 3, 3)
    assert walks.nodes[0].tolist() == [[0, 1, 2, -1]] and walks.nodes[2].tolist() == [
        [2, -1, -1, -1]
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_walks": 0}, "num_walks must be at least 1, got 0"),
        ({"stop": 1.5}, "stop must be a probability, from 0 to 1, got 1.5"),
        ({"length": -1}, "length must be at least 0, got -1"),
        ({"length": None}, "length=None needs a stop above 0"),
        ({"num_walks": 2.5}, "num_walks must be a whole number, got 2.5"),
        ({"length": 2.5}, "length must be a whole number, got 2.5"),
        ({"length": "3"}, "length must be a whole number, got '3'"),
        ({"stop": "often"}, "stop must be a probability, from 0 to 1, got 'often'"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"num_nodes": 5.5}, "num_nodes must be a whole number, got 5.5"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        random_walks(STAR, **{"num_walks": 2, "length": 3, **options})


# --- the kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_kernel_tends_to_its_expectation(alpha):
    edges = random_graph(8, 14)
    weight = symmetric_weights(edges)
    lam = torch.tensor([0.5, 1.0], dtype=torch.float64)
    expected = expected_walk_kernel(edges, 3, lam, alpha, 9, edge_weight=weight, stop=0.1)
    errors = []
    for walks in (100, 10_000):
        drawn = random_walks(edges, walks, 3, 9, edge_weight=weight, stop=0.1, seed=5)
        kernel = WalkKernel(drawn, lam, alpha)
        errors.append(float((kernel.dense() - expected.dense()).abs().max()))
    assert errors[1] < 0.05 and errors[1] < errors[0] / 3


@given(
    n=st.integers(2, 12),
    edges=st.integers(1, 30),
    lam=st.floats(0, 1),
    p=st.floats(0.05, 0.95),
    seed=st.integers(0, 500),
)
@settings(max_examples=40, deadline=None)
def test_theorem_4_2(n, edges, lam, p, seed):
    """RWGNK counts discounted walks; the upper bound is finite only where its series converges."""
    torch.manual_seed(seed)
    graph = torch.cat([random_graph(n, edges), random_tree(n)], 1).unique(dim=1)
    adjacency = torch.zeros(n, n, dtype=torch.float64).index_put_(
        tuple(graph), torch.ones(()).double()
    )
    degree, rho = adjacency.sum(1), (1 - p) * lam
    radius = torch.linalg.eigvalsh(adjacency)[-1]
    kernel = expected_walk_kernel(graph, None, lam, 0.0, n, stop=p).dense()

    def gamma(scale):
        inverse = torch.linalg.inv(torch.eye(n).double() - scale * adjacency)
        return inverse @ inverse  # sum of (i + 1) A^i

    assert (gamma(rho / degree.max()) <= kernel + 1e-9).all()
    if rho * radius / degree.min() < 0.999:
        assert (kernel <= gamma(rho / degree.min()) * (1 + 1e-9) + 1e-9).all()


def test_expected_kernel_of_endless_walks():
    edges = random_graph(8, 14)
    long = expected_walk_kernel(edges, 200, 0.9, 1.0, 8, stop=0.2).dense()
    torch.testing.assert_close(
        expected_walk_kernel(edges, None, 0.9, 1.0, 8, stop=0.2).dense(), long
    )
    with pytest.raises(ValueError, match="needs lam \\(1 - stop\\) below 1, got 1.2"):
        expected_walk_kernel(edges, None, 1.5, stop=0.2, num_nodes=8)


def test_low_rank_is_the_same_mask():
    walks = random_walks(random_graph(8, 14), 6, 3, 8)
    mask = WalkKernel(walks, 0.6)
    x = randn(8, 3)
    torch.testing.assert_close(mask.low_rank().matmul(x), mask.matmul(x))
    with pytest.raises(ValueError, match="alpha must be .* not negative, got -1"):
        WalkKernel(walks, 0.6, alpha=-1)


@pytest.mark.parametrize("stop", [0.0, 0.25])
def test_series_is_unbiased(stop):
    """The mean over many masks is the series, within its standard error."""
    n = 6
    edges = random_graph(6, 8)
    weight = symmetric_weights(edges) / 4
    coefficients = torch.tensor([1.0, -0.7, 0.5], dtype=torch.float64)
    adjacency = torch.zeros(n, n).double().index_put_(tuple(edges), weight, accumulate=True)
    f = sum(c * torch.linalg.matrix_power(adjacency, t) for t, c in enumerate(coefficients))
    draws = torch.stack(
        [
            SeriesKernel(
                *(
                    random_walks(edges, 20, 2, n, edge_weight=weight, stop=stop, seed=2 * i + j)
                    for j in range(2)
                ),
                coefficients,
            ).dense()
            for i in range(400)
        ]
    )
    error = draws.mean(0) - f @ f
    deviation = draws.std(0) / 400**0.5
    assert (error.abs() <= 5 * deviation + 1e-6).all()
    assert (deviation < 0.05).all() and (f @ f).abs().max() > 0.5


def test_series_root():
    series = torch.tensor([[1.0, 1.0, 0.5, 1 / 6], [4.0, -1.0, 0.3, 0.0]], dtype=torch.float64)
    root = series_root(series)
    for row, wanted in zip(root, series, strict=True):
        square = [sum(row[i] * row[k - i] for i in range(k + 1)) for k in range(4)]
        torch.testing.assert_close(torch.stack(square), wanted)
    halves = torch.tensor([1.0, 0.5, 0.125, 1 / 48], dtype=torch.float64)  # exp(A / 2)
    torch.testing.assert_close(root[0], halves)
    torch.autograd.gradcheck(series_root, series.requires_grad_())
    with pytest.raises(ValueError, match="begin with a positive coefficient"):
        series_root(torch.tensor([0.0, 1.0]))


def test_series_refuses():
    edges = random_graph(6, 8)
    walks, others = (random_walks(edges, 3, 2, 6, seed=seed) for seed in (0, 1))
    with pytest.raises(ValueError, match="another seed"):
        SeriesKernel(walks, walks, rand(3))
    with pytest.raises(ValueError, match=r"coefficients of shape \(\.\.\., 3\), got \(4,\)"):
        SeriesKernel(walks, others, rand(4))
    with pytest.raises(ValueError, match="as many nodes and steps"):
        SeriesKernel(walks, random_walks(edges, 3, 4, 6, seed=1), rand(3))


def test_gradients_of_a_large_graph_allocate_no_matrix():
    """40,000 x 40,000 numbers would take 6.4 GB."""
    n = 40_000
    walks = random_walks(random_graph(n, 2 * n), 4, 3, n)
    lam = torch.tensor([0.5, 0.9], requires_grad=True)
    out = WalkKernel(walks, lam).matmul(torch.ones(n, 2))
    (grad,) = torch.autograd.grad(out.sum(), lam)
    assert torch.isfinite(grad).all() and (grad != 0).all()


def test_visits_count_walks():
    visits = Visits.of(random_walks(STAR, 10, 2, 4))
    assert visits.entries.sum(1).tolist() == [40, 40, 40]


@pytest.mark.slow
def test_cora():
    edges, n = planetoid("cora")
    walks = random_walks(edges, 50, 3, n)
    mask = WalkKernel(walks)
    x = randn(n, 4)
    torch.testing.assert_close(mask.matmul(x), mask.low_rank().matmul(x))
    exact = expected_walk_kernel(edges, 3, num_nodes=n).dense()
    assert (mask.rows(0, 200) - exact[:200]).abs().mean() < 0.01


@pytest.mark.parametrize("num_walks", [3, 300])  # counts up to 255 are kept in bytes
@pytest.mark.parametrize("unbiased", [False, True])
def test_visits_counted_in_pieces(num_walks, unbiased, monkeypatch):
    drawn = random_walks(random_graph(12, 20), num_walks, 3, 14, stop=0.1)
    whole = Visits.of(drawn, unbiased)
    monkeypatch.setattr(visits_module, "_VISITS", 5 * num_walks * 4)  # five nodes at a time
    parts = Visits.of(drawn, unbiased)
    assert parts.pattern.column.equal(whole.pattern.column)
    assert parts.pattern.starts.equal(whole.pattern.starts)
    assert parts.entries.equal(whole.entries)
    coefficients = rand(2, 4)
    psi = parts.rows(parts.values(coefficients), 0, 14)
    torch.testing.assert_close(psi, dense_features(drawn, coefficients, unbiased))


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_visits_that_cancel_are_an_empty_row(alpha):
    """With lam = -1 the steps of a walk that stays where it is add up to nothing."""
    loop = torch.tensor([[0], [0]])
    lam = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    mask = WalkKernel(random_walks(loop, 4, 3, 2), lam, alpha)
    expected = torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double()
    x = torch.eye(2).double().requires_grad_()
    out = mask.matmul(x)
    for matrix in (out, mask.dense(), mask.rows(0, 2), mask.prepared(x.dtype).magnitude().dense()):
        assert matrix.isfinite().all() and matrix[1].equal(expected[1])
    for matrix in (out, mask.dense(), expected_walk_kernel(loop, 3, lam, alpha, 2).dense()):
        torch.testing.assert_close(matrix, expected)
        assert torch.autograd.grad(matrix.sum(), lam)[0].isfinite()
