"""Power series of the adjacency matrix, estimated by walks."""

import pytest
import torch

from tests.graph.graphs import draw_walks, random_graph, symmetric_weights
from tests.zoo import rand
from vit_rpe.graph import SeriesKernel, series_root


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
                    draw_walks(edges, 20, 2, n, edge_weight=weight, stop=stop, seed=2 * i + j)
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
    walks, others = (draw_walks(edges, 3, 2, 6, seed=seed) for seed in (0, 1))
    with pytest.raises(ValueError, match="another seed"):
        SeriesKernel(walks, walks, rand(3))
    with pytest.raises(ValueError, match=r"coefficients of shape \(\.\.\., 3\), got \(4,\)"):
        SeriesKernel(walks, others, rand(4))
    with pytest.raises(ValueError, match="as many nodes and steps"):
        SeriesKernel(walks, draw_walks(edges, 3, 4, 6, seed=1), rand(3))
