"""GKATConv among PyG's own layers: what they take, it takes, or says why not."""

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.nn import HeteroConv, PerformerAttention, Sequential  # noqa: E402
from torch_geometric.nn.attention import PolynormerAttention, SGFormerAttention  # noqa: E402
from torch_geometric.transforms import ToSparseTensor  # noqa: E402
from torch_geometric.utils import to_dense_batch, to_undirected  # noqa: E402

from tests.graph.gkat.layers import FEATURE_MAPS, WALKS  # noqa: E402
from tests.graph.graphs import random_graph, random_tree, rings  # noqa: E402
from vit_rpe.graph import (  # noqa: E402
    RWGNK,
    AddRandomWalks,
    DiffusionKernel,
    GKATConv,
    walk_mask,
)


def test_in_pygs_sequential():
    model = Sequential("x, edge_index", [
        (GKATConv(5, 4, 2), "x, edge_index -> x"),
        torch.nn.ELU(),
        (GKATConv(8, 3, concat=False), "x, edge_index -> x"),
    ])  # fmt: skip
    out = model(torch.randn(7, 5), random_tree(7))
    assert out.shape == (7, 3) and torch.isfinite(out).all()
    assert "(0) - GKATConv(5, 4, heads=2): x, edge_index -> x" in repr(model)


def test_repr_is_one_line():
    assert repr(GKATConv(16, 8, heads=4)) == "GKATConv(16, 8, heads=4)"
    conv = GKATConv(16, 8, feature_map="additive", exact_kernel=True)
    assert repr(conv) == "GKATConv(16, 8, heads=1, additive, exact_kernel=True)"


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_adjacency(layout):
    """As PyG's own transform makes them; their values are the weights of the edges."""
    edges = random_graph(9, 14)
    edges = to_undirected(edges[:, edges[0] != edges[1]])
    weight = torch.rand(edges.shape[1])
    weight[edges[0] > edges[1]] = 0.5
    transform = ToSparseTensor("weight", layout=getattr(torch, f"sparse_{layout}"))
    data = transform(Data(edge_index=edges, weight=weight, num_nodes=9))
    conv, x = GKATConv(5, 4, mask=WALKS).eval(), torch.randn(9, 5)
    order = (edges[1] * 9 + edges[0]).argsort()  # walks go by the order of edges
    expected = conv(x, edges[:, order], weight[order])
    assert_close(conv(x, data.adj_t), expected)
    assert not conv(x, edges[:, order]).allclose(expected)


def test_residual():
    for concat, width in ((True, 8), (False, 4)):
        torch.manual_seed(0)
        conv = GKATConv(5, 4, 2, concat, residual=True, mask=WALKS).eval()
        x, edges = torch.randn(9, 5), random_tree(9)
        added = torch.nn.functional.linear(x, conv.res.weight)
        assert added.shape == (9, width)
        out, conv.res = conv(x, edges), None
        assert_close(out, conv(x, edges) + added)


def test_bipartite_input_is_refused():
    x, edges = torch.randn(9, 5), random_tree(9)
    for call in (
        lambda: GKATConv(5, 4)((x, x), edges),
        lambda: GKATConv((5, 5), 4),  # type: ignore[arg-type]
        lambda: HeteroConv({("a", "to", "b"): GKATConv(5, 4)})(
            {"a": x, "b": x}, {("a", "to", "b"): edges}
        ),
    ):
        with pytest.raises(ValueError, match="one graph, not for bipartite ones .* GATConv there"):
            call()
    own = HeteroConv({("a", "to", "a"): GKATConv(5, 4, mask=WALKS)})
    assert own({"a": x}, {("a", "to", "a"): edges})["a"].shape == (9, 4)


def test_no_gradient_of_edge_weight_is_lost():
    x, edges = torch.randn(9, 5), random_tree(9)
    weight = torch.ones(16, requires_grad=True)
    cached = GKATConv(5, 4, cached=True)
    cached(x, edges)
    for call in (
        lambda: GKATConv(5, 4)(x, edges, weight),
        lambda: GKATConv(5, 4, mask="diffusion")(x, edges, weight),
        lambda: GKATConv(5, 4)(x, edges, weight, mask=WALKS(edges)),
        lambda: cached(x, edges, weight),
    ):
        with pytest.raises(ValueError, match="edge_weight requires a gradient, but .* detach it"):
            call()


# --- masks by name, and their lam ----------------------------------------------------------------


def test_masks_by_name():
    x, edges = torch.randn(9, 5), random_tree(9)
    for name, maker in (("rwgnk", RWGNK()), ("diffusion", DiffusionKernel())):
        conv = GKATConv(5, 4, mask=name).eval()
        assert conv(x, edges).equal(conv(x, mask=maker(edges)))
        assert len(conv._recent) == 1


def test_each_head_learns_its_lam():
    """Heads that are alike but for their lam, after some steps towards a narrower mask."""
    torch.manual_seed(0)
    edges, x = rings(30), torch.randn(30, 5)
    for name, options in (("rwgnk", {}), ("diffusion", {}), ("rwgnk", {"exact_kernel": False})):
        conv = GKATConv(5, 4, 2, mask=name, learn_lam=True, resample=False, **options)
        assert conv.log_lam.tolist() == [0.0, 0.0]
        target = conv.value(x).detach()
        target[:, 4:] = target[:, 4:].mean(0)  # the first head is to see itself, the second all
        optimizer = torch.optim.Adam([conv.log_lam], lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            (conv(x, edges) - target).square().mean().backward()
            optimizer.step()
        assert conv.log_lam[0] < -0.3 < 0.0 < conv.log_lam[1]
    assert GKATConv(5, 4, mask=RWGNK(lam=0.5), learn_lam=True).log_lam.exp().item() == 0.5
    with pytest.raises(ValueError, match="learn_lam needs a mask with a lam, got a Ones"):
        from vit_rpe.masks import Ones

        GKATConv(5, 4, learn_lam=True)(x, mask=Ones(30))
    with pytest.raises(ValueError, match="learns a positive lam, and the mask begins with 0"):
        GKATConv(5, 4, mask=RWGNK(lam=0.0), learn_lam=True)


# --- walks ---------------------------------------------------------------------------------------


def test_walks_of_a_generator_of_their_own():
    edges, x = random_graph(30, 60), torch.randn(30, 5)
    conv = GKATConv(5, 4, mask=WALKS, resample=torch.Generator().manual_seed(3))
    first, second = conv(x, edges), conv(x, edges)
    assert not first.equal(second)
    conv.resample.manual_seed(3)
    state = torch.random.get_rng_state()
    assert conv(x, edges).equal(first)
    assert torch.random.get_rng_state().equal(state)


def test_walks_that_are_kept():
    """Also those of several graphs, in training."""
    graphs = [(random_tree(9), torch.randn(9, 5)) for _ in range(3)]
    conv = GKATConv(5, 4, mask=WALKS, resample=False)
    first = [conv(x, e) for e, x in graphs]
    assert all(conv(x, e).equal(y) for (e, x), y in zip(graphs, first, strict=True))
    assert len(conv._recent) == 3


def test_copies():
    conv = GKATConv(5, 4, 2, learn_lam=True, residual=True)
    edges, x = random_tree(9), torch.randn(9, 5)
    out = conv.eval()(x, edges)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert other(x, edges).equal(out)
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        assert conv(x, edges).equal(out)


# --- what a graph of a batch knows of the others --------------------------------------------------


def test_a_graph_does_not_depend_on_the_others_of_its_batch():
    """PyG's own linear attentions count the padding of small graphs among their keys."""
    torch.manual_seed(0)
    small, large = (Data(x=torch.randn(n, 16), edge_index=rings(n)) for n in (5, 40))
    walked = [AddRandomWalks(num_walks=8)(data) for data in (small, large)]
    batch = Batch.from_data_list(walked)

    def change(attention: torch.nn.Module) -> float:
        alone = attention.eval()(small.x[None], torch.ones(1, 5, dtype=torch.bool))[0]
        together = attention(*to_dense_batch(batch.x, batch.batch))[0, :5]
        return float((together - alone).detach().abs().max() / alone.detach().abs().max())

    theirs = {
        "SGFormer": SGFormerAttention(16, heads=1, head_channels=16),
        "Polynormer": PolynormerAttention(16, heads=1, head_channels=16),
        "Performer": PerformerAttention(16, heads=1, head_channels=16),
    }
    for name, attention in theirs.items():
        assert change(attention) > 1e-3, f"{name} of PyG has been mended"
    for feature_map in FEATURE_MAPS:
        for exact in (None, False):
            conv = GKATConv(16, 16, feature_map=feature_map, exact_kernel=exact)
            alone = conv(small.x, mask=walk_mask(walked[0]))
            together = conv(batch.x, mask=walk_mask(batch), batch=batch.batch)[:5]
            assert_close(together, alone, rtol=1e-5, atol=1e-6)
