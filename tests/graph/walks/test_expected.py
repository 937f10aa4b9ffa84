"""The expected kernel of walks, and its bounds."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.graphs import random_graph, random_tree
from vit_rpe.graph import expected_walk_kernel


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
    kernel = expected_walk_kernel(graph, num_steps=None, lam=lam, alpha=0.0, stop=p).dense()

    def gamma(scale):
        inverse = torch.linalg.inv(torch.eye(n).double() - scale * adjacency)
        return inverse @ inverse  # sum of (i + 1) A^i

    assert (gamma(rho / degree.max()) <= kernel + 1e-9).all()
    if rho * radius / degree.min() < 0.999:
        assert (kernel <= gamma(rho / degree.min()) * (1 + 1e-9) + 1e-9).all()


def test_expected_kernel_of_endless_walks():
    options = {"num_nodes": 8, "num_steps": None, "lam": 0.9, "stop": 0.2}
    endless = partial(expected_walk_kernel, random_graph(8, 14), **options)
    long = endless(num_steps=200).dense()
    torch.testing.assert_close(endless().dense(), long)
    with pytest.raises(ValueError, match="needs lam \\(1 - stop\\) below 1, got 1.2"):
        endless(lam=1.5)
