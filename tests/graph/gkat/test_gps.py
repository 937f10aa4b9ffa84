"""The layer of local messages and masked global attention."""

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
from torch_geometric.data import Batch  # noqa: E402
from torch_geometric.nn import GATConv, GCNConv, GINEConv  # noqa: E402

from tests.graph.gkat.batches import graphs  # noqa: E402
from tests.graph.gkat.layers import WALKS  # noqa: E402
from tests.graph.graphs import random_tree  # noqa: E402
from vit_rpe.graph import AddRandomWalks, GKATBlock, walk_mask  # noqa: E402


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", "graph_norm", None])
def test_a_block_is_its_formula(norm):
    torch.manual_seed(0)
    block = GKATBlock(6, GCNConv(6, 6), heads=2, norm=norm, mask=WALKS).eval()
    x, edges, batch = torch.randn(9, 6), random_tree(9), torch.zeros(9, dtype=torch.int64)

    def normalized(i: int, y: torch.Tensor) -> torch.Tensor:
        own = block.norms[i]
        return own(y, batch) if norm in ("layer_norm", "graph_norm") else own(y)

    h = normalized(0, x + block.attention(x, edges)) + normalized(1, x + block.conv(x, edges))
    assert_close(block(x, edges, batch=batch), normalized(2, h + block.mlp(h)))


def test_a_batch_is_its_graphs_one_by_one():
    parts = [AddRandomWalks(num_walks=8)(data) for data in graphs()]
    batch = Batch.from_data_list(parts)
    for norm in ("layer_norm", "graph_norm", None):
        block = GKATBlock(5, GATConv(5, 5), norm=norm, feature_map="elu").eval()
        whole = block(batch.x, batch.edge_index, batch=batch.batch, mask=walk_mask(batch))
        alone = [
            block(p.x, p.edge_index, batch=p.x.new_zeros(len(p.x)).long(), mask=walk_mask(p))
            for p in parts
            if p.num_nodes
        ]
        assert_close(whole, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_edge_attributes_reach_the_local_layer():
    mlp = torch.nn.Linear(6, 6)
    block = GKATBlock(6, GINEConv(mlp, edge_dim=3), dropout=0.1)
    edges = random_tree(9)
    attr = torch.randn(edges.shape[1], 3, requires_grad=True)
    block(torch.randn(9, 6), edges, edge_attr=attr).square().sum().backward()
    assert attr.grad is not None and attr.grad.abs().max() > 0
    alone = GKATBlock(6)
    alone.reset_parameters()
    block.reset_parameters()
    assert alone(torch.randn(9, 6), edges).shape == (9, 6)
    assert "GKATBlock(6, conv=None, GKATConv(6, 6, heads=1))" == repr(alone)
    with pytest.raises(ValueError, match="6 channels cannot be cut into 4 heads"):
        GKATBlock(6, heads=4)
    with pytest.raises(ValueError, match="6 channels cannot be cut into 0 heads"):
        GKATBlock(6, heads=0)
