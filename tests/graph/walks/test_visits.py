"""Counts of the nodes that walks visit."""

import pytest
import torch

from tests.graph.graphs import STAR, draw_walks, random_graph
from tests.zoo import rand
from vit_rpe.graph.walks import visits as visits_module
from vit_rpe.graph.walks.visits import Visits, dense_features


def test_visits_count_walks():
    visits = Visits.of(draw_walks(STAR, 10, 2, 4))
    assert visits.entries.sum(1).tolist() == [40, 40, 40]


@pytest.mark.parametrize("num_walks", [3, 300])  # counts up to 255 are kept in bytes
@pytest.mark.parametrize("unbiased", [False, True])
def test_visits_counted_in_pieces(num_walks, unbiased, monkeypatch):
    drawn = draw_walks(random_graph(12, 20), num_walks, 3, 14, stop=0.1)
    whole = Visits.of(drawn, unbiased)
    monkeypatch.setattr(visits_module, "_VISITS", 5 * num_walks * 4)  # five nodes at a time
    parts = Visits.of(drawn, unbiased)
    assert parts.pattern.column.equal(whole.pattern.column)
    assert parts.pattern.starts.equal(whole.pattern.starts)
    assert parts.entries.equal(whole.entries)
    coefficients = rand(2, 4)
    psi = parts.rows(parts.values(coefficients), 0, 14)
    torch.testing.assert_close(psi, dense_features(drawn, coefficients, unbiased))
