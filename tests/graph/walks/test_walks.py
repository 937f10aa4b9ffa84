"""Walks are where they should be as often as they should be, and kernels are their averages."""

import pytest
import torch

from tests.graph.graphs import EMPTY, STAR, draw_walks, random_graph, symmetric_weights
from vit_rpe.graph import WalkKernel, both_directions, random_walks
from vit_rpe.graph.walks.visits import dense_features


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
    walks = draw_walks(edges, 20_000, 3, n, edge_weight=weight, stop=stop, seed=3)
    expected = torch.eye(n, dtype=torch.float64)
    for frequency in step_frequencies(walks, n):
        assert (frequency - expected).abs().max() < 5 * 0.5 / 20_000**0.5
        expected = (1 - stop) * transitions(edges, n, weight) @ expected


def test_weights_decide_and_zero_is_a_closed_road():
    weight = torch.tensor([0.0, 1.0, 3.0, 0.0, 1.0, 3.0])
    walks = draw_walks(STAR, 20_000, 1, 5, edge_weight=weight)
    counts = torch.bincount(walks.nodes[0, :, 1], minlength=5) / 20_000
    torch.testing.assert_close(counts, torch.tensor([0, 0, 0.25, 0.75, 0]), atol=0.02, rtol=0)
    assert (walks.nodes[1, :, 1] == -1).all()  # its only edge weighs nothing


def test_tiny_weights_beside_large_ones():
    weight = torch.tensor([1e8, 1e-30, 3e-30, 1e8, 1e-30, 3e-30], dtype=torch.float64)
    edges = both_directions(torch.tensor([[0, 2, 2], [1, 3, 4]]))
    walks = draw_walks(edges, 20_000, 1, 5, edge_weight=weight)
    share = (walks.nodes[2, :, 1] == 4).double().mean()
    assert abs(share - 0.75) < 0.02 and (walks.nodes[2, :, 1] > 2).all()


def test_isolated_nodes_stay_where_they_are():
    for edges in (STAR, EMPTY):
        walks = draw_walks(edges, 3, 4, 6)
        assert (walks.nodes[4:, :, 0] == torch.tensor([[4], [5]])).all()
        assert (walks.nodes[4:, :, 1:] == -1).all() and (walks.importance()[4:, :, 1:] == 0).all()
        mask = WalkKernel(walks, 0.5)
        torch.testing.assert_close(mask.dense()[4:, 4:], torch.eye(2).double())
        assert torch.isfinite(mask.dense()).all()


def test_the_seed_decides():
    edges = random_graph(20, 40)
    walks = [draw_walks(edges, 4, 5, 20, seed=seed).nodes for seed in (1, 1, 2)]
    assert walks[0].equal(walks[1]) and not walks[0].equal(walks[2])


def test_lengths():
    edges = random_graph(10, 30)
    assert draw_walks(edges, 2, 0, 10).nodes.shape == (10, 2, 1)
    until_the_end = draw_walks(edges, 500, None, 10, stop=0.5)
    lengths = (until_the_end.nodes >= 0).sum(-1) - 1
    assert abs(lengths.double().mean() - 1.0) < 0.1  # (1 - p) / p
    assert (draw_walks(edges, 3, 4, 10, stop=1.0).nodes[..., 1:] == -1).all()


def test_walks_follow_the_direction_of_edges():
    walks = draw_walks(torch.tensor([[0, 1], [1, 2]]), 1, 3, 3)
    assert walks.nodes[0].tolist() == [[0, 1, 2, -1]] and walks.nodes[2].tolist() == [
        [2, -1, -1, -1]
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_walks": 0}, "num_walks must be at least 1, got 0"),
        ({"stop": 1.5}, "stop must be a probability, from 0 to 1, got 1.5"),
        ({"num_steps": -1}, "num_steps must be at least 0, got -1"),
        ({"num_steps": None}, "num_steps=None needs a stop above 0"),
        ({"num_walks": 2.5}, "num_walks must be a whole number, got 2.5"),
        ({"num_steps": 2.5}, "num_steps must be a whole number, got 2.5"),
        ({"num_steps": "3"}, "num_steps must be a whole number, got '3'"),
        ({"stop": "often"}, "stop must be a probability, from 0 to 1, got 'often'"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"num_nodes": 5.5}, "num_nodes must be a whole number, got 5.5"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        random_walks(STAR, **{"num_walks": 2, "num_steps": 3, **options})
