"""GKATConv is its definition, whatever the kernel; it knows graphs, batches and nothing else."""

import pytest
import torch
from torch.testing import assert_close

from tests.graph.gkat.layers import FEATURE_MAPS, WALKS, pair
from tests.graph.graphs import EMPTY, GRAPH_ZOO, random_graph, random_tree, rings
from vit_rpe.features import FeatureMap, PositiveRandomFeatures
from vit_rpe.graph import (
    Diffusion,
    GKATConv,
    TreeExponential,
    WalkKernel,
    as_graph,
    random_walks,
)
from vit_rpe.graph import edges as edges_module
from vit_rpe.masks import BlockDiagonal, Dense, Ones, Packing, Scaled

DETERMINISTIC = [name for name in FEATURE_MAPS if name not in FEATURE_MAPS[:2]]


@pytest.mark.parametrize("feature_map", DETERMINISTIC)
@pytest.mark.parametrize("concat", [True, False])
def test_equals_gkat_0(feature_map, concat):
    edges, x = random_graph(20, 40), torch.randn(22, 5, requires_grad=True)
    linear, explicit = pair(feature_map, concat=concat)
    out, expected = linear(x, edges), explicit(x, edges)
    assert out.shape == (22, 12 if concat else 4)
    assert_close(out, expected, rtol=1e-5, atol=1e-5)
    g = torch.randn_like(out)
    grads, wanted = (torch.autograd.grad(o, [x, *layer.parameters()], g)
                     for o, layer in ((out, linear), (expected, explicit)))  # fmt: skip
    assert_close(grads, wanted, rtol=1e-4, atol=1e-5)
    assert all(grad.abs().max() > 1e-4 for grad in grads)


def test_random_features_approach_gkat_0():
    """The error falls as 1 / sqrt(features)."""
    edges, x = random_graph(20, 40), torch.randn(20, 5) / 2
    _, explicit = pair("softmax")
    expected = explicit(x, edges).detach()
    parameters = dict(explicit.named_parameters())
    errors = []
    for features in (16, 128, 1024):
        linear, _ = pair("softmax", num_features=features)
        linear.load_state_dict(parameters, strict=False)
        draws = []
        for seed in range(20):
            assert isinstance(linear.features, PositiveRandomFeatures)
            linear.features.redraw(torch.Generator().manual_seed(seed))
            draws.append((linear(x, edges).detach() - expected).square().mean())
        errors.append(float(torch.stack(draws).mean().sqrt() / expected.std()))
    assert all(b < a / 2 for a, b in zip(errors, errors[1:], strict=False)), errors
    assert errors[-1] < 0.06


def test_additive_is_near_gats_weights():
    """exp(z) + exp(slope z) lies between exp(LeakyReLU(z)) and twice it."""
    conv = GKATConv(5, 4, 3, feature_map="additive")
    q, k, _ = conv.queries_keys_values(torch.randn(9, 5))
    gat = torch.nn.functional.leaky_relu(q + k.mT, 0.2).exp()
    ratio = conv.attention.kernel(q, k, Ones(9)) / gat  # each query has a factor of its own
    spread = ratio.amax(-1) / ratio.amin(-1)
    assert (spread <= 2.0 + 1e-5).all() and (spread > 1.2).any()


@pytest.mark.parametrize("name", ["tree_exponential_one_head", "diffusion_no_edges", "hypercube",
                                  "shortest_paths", "series_kernel", "walk_kernel"])  # fmt: skip
def test_any_mask(name):
    mask = GRAPH_ZOO[name]()
    x = torch.randn(mask.length, 5, dtype=torch.float64)
    linear, explicit = (layer.double() for layer in pair("elu"))
    assert_close(linear(x, mask=mask), explicit(x, mask=mask))


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_the_exact_kernel_takes_the_graphs_of_a_batch_one_by_one(feature_map):
    edges, x = rings(5, 1, 7), torch.randn(13, 5)
    batch = torch.tensor([0] * 5 + [2] + [3] * 7)  # graph 1 has no nodes
    linear, exact = pair(feature_map)
    assert_close(exact(x, edges, batch=batch), exact(x, edges), rtol=1e-5, atol=1e-5)
    assert linear(x, edges, batch=batch).equal(linear(x, edges))
    assert exact(x, edges, batch=batch.flip(0)).equal(exact(x, edges))  # all nodes at once
    with pytest.raises(ValueError, match=r"13 nodes need batch of shape \(13,\), got \(12,\)"):
        exact(x, edges, batch=batch[1:])


def test_a_graph_is_checked_once(monkeypatch):
    checks = []
    check = edges_module._check_index
    monkeypatch.setattr(edges_module, "_check_index", lambda *a: (checks.append(1), check(*a)))
    conv, _ = pair("relu")
    for training in (True, False):
        conv.train(training)(torch.randn(8, 5), random_tree(8))
    assert len(checks) == 2
    graph = as_graph(random_tree(8))
    assert conv(torch.randn(8, 5), graph).shape == (8, 12) and len(checks) == 3


def test_a_learned_mask_gets_gradients():
    edges, lam = random_graph(12, 20), torch.tensor([0.3, 0.6, 0.9], requires_grad=True)
    mask = Diffusion(edges, num_nodes=12, lam=lam)
    GKATConv(5, 4, 3)(torch.randn(12, 5), mask=mask).square().sum().backward()
    assert torch.isfinite(lam.grad).all() and (lam.grad != 0).all()


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_a_permutation_of_nodes_permutes_the_output(feature_map):
    n = 15
    edges, x = random_graph(n, 30), torch.randn(n, 5)
    conv, _ = pair(feature_map)
    walks = random_walks(edges, num_nodes=n, num_walks=10, num_steps=3)
    names = torch.randperm(n)  # node i is called names[i]
    back = torch.argsort(names)
    moved = type(walks)(names[walks.nodes[back].long()].int(), walks.factor[back])
    out = conv(x, mask=WalkKernel(walks))
    assert_close(conv(x[back], mask=WalkKernel(moved)), out[back], rtol=1e-4, atol=1e-5)


def test_isolated_nodes_and_empty_graphs_stay_finite():
    for feature_map in FEATURE_MAPS:
        conv, explicit = pair(feature_map)
        for layer in (conv, explicit):
            x = torch.randn(6, 5, requires_grad=True)
            out = layer(x, torch.tensor([[0, 1], [1, 0]]))
            out.sum().backward()
            assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
            assert layer(torch.empty(0, 5), EMPTY).shape == (0, 12)
            assert torch.isfinite(layer(torch.randn(3, 5), EMPTY)).all()


def test_an_isolated_node_sees_itself_alone():
    conv, _ = pair("elu")
    x = torch.randn(4, 5)
    out = conv(x, torch.tensor([[0, 1], [1, 0]]))
    assert_close(out[3], conv.value(x[3]))


def test_cached_masks_are_made_once():
    made = []

    def make(edge_index, edge_weight, num_nodes):
        made.append(num_nodes)
        return WALKS(edge_index, edge_weight, num_nodes=num_nodes)

    conv = GKATConv(5, 4, mask=make, cached=True)
    edges, x = random_tree(8), torch.randn(8, 5)
    assert_close(conv(x, edges), conv(x, edges))
    assert made == [8]
    with pytest.raises(ValueError, match="x has 7 nodes, but its mask has 8"):
        conv(x[:7], edges)
    conv.reset_parameters()
    assert conv(x[:7], EMPTY).shape == (7, 4) and made == [8, 7]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GKATConv(5, 0), "out_channels must be at least 1, got 0"),
        (lambda: GKATConv(5, 4, heads=2.0), "heads must be a whole number, got 2.0"),
        (lambda: GKATConv(5, 4, feature_map="rbf"), "one of relu, elu, .* softmax; got 'rbf'"),
        (lambda: GKATConv(5, 4, dropout=0.5), "needs exact_kernel=True, got dropout=0.5"),
        (lambda: GKATConv(5, 4)(torch.ones(3, 4), EMPTY), r"shape \(nodes, 5\), got \(3, 4\)"),
        (lambda: GKATConv(5, 4)(torch.ones(3, 5)), "needs edge_index, or a mask"),
        (
            lambda: GKATConv(5, 4, mask=GRAPH_ZOO["walk_kernel"]()),
            r"\(edge_index, edge_weight, \*, num_nodes\) .* got a WalkKernel: .*forward\(x, mask=",
        ),
        (
            lambda: GKATConv(5, 4, mask=Diffusion),
            r"got the class Diffusion: .* Diffusion\(edge_index, edge_weight, num_nodes=",
        ),
        (lambda: GKATConv(5, 4, mask="heat"), "'rwgnk' or 'diffusion', .* got 'heat'"),  # type: ignore
        (
            lambda: GKATConv(5, 4)(torch.ones(3, 5), torch.tensor([[0], [3]])),
            r"edge 0 joins \[0, 3\], but nodes go from 0 to 2",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- whose parameters, whose walks -------------------------------------------------------------


class OwnFeatures(FeatureMap):
    """Has its own idea of how it begins, and no matrix among its parameters."""

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.full((4,), 2.0))
        self.mix = torch.nn.Parameter(torch.zeros(4, 4))

    def num_features(self, head_dim: int) -> int:
        return head_dim

    def query(self, q: torch.Tensor) -> torch.Tensor:
        return (self.gain * (q + q @ self.mix)).exp()

    def key(self, k: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        return self.query(k)


def test_a_users_features_keep_their_parameters():
    features = OwnFeatures()
    conv = GKATConv(5, 4, 3, feature_map=features)
    before = conv.value.weight.clone()
    conv.reset_parameters()
    assert not conv.value.weight.equal(before)
    assert (features.gain == 2).all() and (features.mix == 0).all()
    features.reset_parameters = lambda: torch.nn.init.constant_(features.gain, 3.0)  # type: ignore
    conv.reset_parameters()
    assert (features.gain == 3).all() and (features.mix == 0).all()


def test_learned_lengths_of_edges_get_gradients():
    tree, x = random_tree(9), torch.randn(9, 5)
    length = torch.full((16,), 0.3, requires_grad=True)
    options = {
        "mask": lambda e, w, num_nodes: TreeExponential(e, w, num_nodes=num_nodes),
        "feature_map": "elu",
    }
    GKATConv(5, 4, **options)(x, tree, length).square().sum().backward()
    assert length.grad is not None and length.grad.abs().max() > 1e-4
    for conv in (GKATConv(5, 4), GKATConv(5, 4, cached=True, **options)):
        with pytest.raises(ValueError, match="edge_weight requires a gradient, but .* detach it"):
            conv(x, tree, length)
        with torch.no_grad():
            assert conv(x, tree, length).isfinite().all()


@pytest.mark.parametrize("feature_map", ["relu", "elu", "softmax", "additive"])
def test_attention_at_the_edges_is_that_of_the_matrix(feature_map):
    edges, x = random_graph(12, 20), torch.randn(13, 5)
    conv, _ = pair(feature_map)
    mask = WALKS(edges, num_nodes=13)
    q, k, _ = conv.queries_keys_values(x)
    phi_q, phi_k = conv.attention.query_key_features(q, k, mask)
    matrix = (phi_q @ phi_k.mT) * mask.dense().float()
    assert_close(conv.edge_attention(x, edges, mask), matrix[:, edges[0], edges[1]])


# --- wide ranges -------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("scale", [150.0, 2000.0])
@pytest.mark.parametrize(
    "make",
    [
        WALKS,
        lambda e, w, num_nodes: Diffusion(e, num_nodes=num_nodes, lam=0.5),
        lambda e, w, num_nodes: TreeExponential(
            e[:, (e[0] - e[1]).abs() == 1], num_nodes=num_nodes
        ),
        lambda e, w, num_nodes: BlockDiagonal([Diffusion(rings(12)), Diffusion(rings(9))]),
        lambda e, w, num_nodes: Scaled(
            Packing((torch.arange(num_nodes) < 12).long()), right=torch.rand(num_nodes)
        ),
    ],
)
def test_a_loud_graph_does_not_hush_the_others(make, scale, exact):
    """Additive features are exponentials: each graph of a batch has a scale of its own."""
    torch.manual_seed(0)
    conv = GKATConv(5, 4, 3, feature_map="additive", exact_kernel=exact)
    mask, x = make(rings(12, 9), None, num_nodes=21), torch.randn(21, 5)
    x[12:] *= scale
    out = conv(x, mask=mask)
    quiet = conv(x[:12], mask=Dense(mask.dense()[:12, :12]))
    assert_close(out[:12], quiet, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_one_graph_with_a_wide_range(exact):
    """A long ring, loud on one side: float32 cannot hold all keys at one scale."""
    torch.manual_seed(0)
    conv = GKATConv(5, 4, 3, feature_map="additive", exact_kernel=exact)
    mask, x = WALKS(rings(60)), torch.randn(60, 5)
    x[30:] *= 150
    out = conv(x, mask=mask)
    assert out.dtype == torch.float32
    expected = conv.double()(x.double(), mask=mask).float()
    assert_close(out[:30], expected[:30], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [10.0, 40.0, 100.0])
def test_random_features_of_each_graph_have_a_scale_of_their_own(scale):
    """They fall as exp(-|k|^2 / 2): beside a quiet graph a loud one would be all zeros."""
    torch.manual_seed(0)
    conv = GKATConv(5, 4, 3, feature_map="softmax", num_features=16, exact_kernel=False)
    mask, x = WALKS(rings(12, 9)), torch.randn(21, 5)
    x[12:] *= scale
    out = conv(x, mask=mask)
    assert out.dtype == torch.float32
    for graph in (slice(0, 12), slice(12, 21)):
        alone = conv.double()(x[graph].double(), mask=Dense(mask.dense()[graph, graph].double()))
        conv.float()
        assert_close(
            out[graph], alone.float(), rtol=1e-3, atol=1e-3 * float(alone.detach().abs().max())
        )
