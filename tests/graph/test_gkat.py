"""GKATConv is its definition, whatever the kernel; it knows graphs, batches and nothing else."""

import copy

import pytest
import torch
from torch.testing import assert_close

from tests.graph.graphs import EMPTY, GRAPH_ZOO, random_graph, random_tree
from vit_rpe.features import FeatureMap, PositiveRandomFeatures
from vit_rpe.graph import (
    Diffusion,
    DynamicWalks,
    GKATConv,
    RandomWalkMask,
    TreeExponential,
    WalkKernel,
    both_directions,
    graphots,
    makers,
    random_walks,
)
from vit_rpe.graph.layer import FEATURE_MAPS
from vit_rpe.masks import BlockDiagonal, Dense, Ones, Packing, Scaled

DETERMINISTIC = [name for name in FEATURE_MAPS if name != "softmax"]
WALKS = RandomWalkMask(num_walks=8, length=3)


def pair(feature_map: str, **options) -> tuple[GKATConv, GKATConv]:
    """A layer and GKAT-0 with the same parameters."""
    torch.manual_seed(0)
    make = {"feature_map": feature_map, "mask": WALKS, **options}
    linear, explicit = GKATConv(5, 4, 3, **make), GKATConv(5, 4, 3, explicit=True, **make)
    explicit.load_state_dict(linear.state_dict())
    return linear.eval(), explicit.eval()  # in training each would draw walks of its own


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
    ratio = conv.kernel(q, k, Ones(9)) / gat  # each query has a factor of its own
    spread = ratio.amax(-1) / ratio.amin(-1)
    assert (spread <= 2.0 + 1e-5).all() and (spread > 1.2).any()


@pytest.mark.parametrize("name", ["tree_exponential_one_head", "diffusion_no_edges", "hypercube",
                                  "shortest_paths", "series_kernel", "walk_kernel"])  # fmt: skip
def test_any_mask(name):
    mask = GRAPH_ZOO[name]()
    x = torch.randn(mask.length, 5, dtype=torch.float64)
    linear, explicit = (layer.double() for layer in pair("elu"))
    assert_close(linear(x, mask=mask), explicit(x, mask=mask))


def test_a_learned_mask_gets_gradients():
    edges, lam = random_graph(12, 20), torch.tensor([0.3, 0.6, 0.9], requires_grad=True)
    mask = Diffusion(edges, lam, num_nodes=12)
    GKATConv(5, 4, 3)(torch.randn(12, 5), mask=mask).square().sum().backward()
    assert torch.isfinite(lam.grad).all() and (lam.grad != 0).all()


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_a_permutation_of_nodes_permutes_the_output(feature_map):
    n = 15
    edges, x = random_graph(n, 30), torch.randn(n, 5)
    conv, _ = pair(feature_map)
    walks = random_walks(edges, 10, 3, n)
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

    def make(edge_index, n, weight):
        made.append(n)
        return WALKS(edge_index, n, weight)

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
        (lambda: GKATConv(5, 4, feature_map="rbf"), "one of softmax, relu, .* got 'rbf'"),
        (lambda: GKATConv(5, 4, dropout=0.5), "needs explicit=True, got dropout=0.5"),
        (lambda: GKATConv(5, 4)(torch.ones(3, 4), EMPTY), r"shape \(nodes, 5\), got \(3, 4\)"),
        (lambda: GKATConv(5, 4)(torch.ones(3, 5)), "needs edge_index, or a mask"),
        (
            lambda: GKATConv(5, 4, mask=GRAPH_ZOO["walk_kernel"]()),
            r"\(edge_index, num_nodes, edge_weight\) .* got a WalkKernel: .*forward\(x, mask=",
        ),
        (
            lambda: GKATConv(5, 4, mask=Diffusion),
            r"got the class Diffusion: .* Diffusion\(edge_index, num_nodes=n, \.\.\.\)",
        ),
        (lambda: GKATConv(5, 4, mask="rwgnk"), "makes a mask, got 'rwgnk'"),
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


def test_walks_are_drawn_afresh_in_training():
    conv, _ = pair("elu")
    edges, x = random_graph(30, 60), torch.randn(30, 5)
    conv.train()
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws += [conv(x, edges), conv(x, edges)]
    assert not draws[0].equal(draws[1]) and not draws[0].equal(draws[4])
    assert draws[0].equal(draws[2]) and draws[1].equal(draws[3])
    conv.eval()
    assert conv(x, edges).equal(conv(x, mask=WALKS(edges, 30)))


def test_graphs_that_were_seen_are_not_walked_again(monkeypatch):
    walked = []
    monkeypatch.setattr(
        makers, "random_walks", lambda *a, **o: walked.append(a) or random_walks(*a, **o)
    )
    conv, _ = pair("elu")
    x, weight = torch.randn(9, 5), torch.rand(16)
    trees = [random_tree(9) for _ in range(makers._KEPT + 3)]
    out = conv(x, trees[0])
    assert conv(x, trees[0].clone()).equal(out) and len(walked) == 1
    assert not conv(x, trees[0], weight).equal(out) and len(walked) == 2
    conv(torch.randn(10, 5), trees[0])
    assert len(walked) == 3
    trees[0][:, 0] = trees[0][0, 0]  # the same tensor, another graph
    assert not conv(x, trees[0]).equal(out) and len(walked) == 4
    for tree in trees:
        conv(x, tree)
    assert len(conv._recent) == makers._KEPT
    assert len(copy.deepcopy(conv)._recent) == 0
    made = len(walked)
    conv(x, trees[-1])
    assert len(walked) == made
    conv.make_mask = RandomWalkMask(num_walks=3)
    conv(x, trees[-1])
    assert len(walked) == made + 1


def test_learned_lengths_of_edges_get_gradients():
    tree, x = random_tree(9), torch.randn(9, 5)
    length = torch.full((16,), 0.3, requires_grad=True)
    options = {"mask": lambda e, n, w: TreeExponential(e, w, num_nodes=n), "feature_map": "elu"}
    GKATConv(5, 4, **options)(x, tree, length).square().sum().backward()
    assert length.grad is not None and length.grad.abs().max() > 1e-4
    for conv in (GKATConv(5, 4), GKATConv(5, 4, cached=True, **options)):
        with pytest.raises(ValueError, match="edge_weight requires a gradient, but .* detach it"):
            conv(x, tree, length)
        with torch.no_grad():
            assert conv(x, tree, length).isfinite().all()


# --- dynamic walks -----------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_entries_of_the_kernel_at_pairs(alpha):
    lam = torch.tensor([0.4, 0.9], dtype=torch.float64)
    mask = WalkKernel(random_walks(random_graph(12, 20), 6, 3, 13), lam, alpha)
    i, j = torch.randint(13, (2, 40))
    assert_close(mask.at(i, j), mask.dense()[:, i, j])
    assert mask.at(i[:0], j[:0]).shape == (2, 0)


@pytest.mark.parametrize("feature_map", ["relu", "elu", "softmax", "additive"])
def test_attention_at_the_edges_is_that_of_the_matrix(feature_map):
    edges, x = random_graph(12, 20), torch.randn(13, 5)
    conv, _ = pair(feature_map)
    mask = WALKS(edges, 13)
    q, k, _ = conv.queries_keys_values(x)
    phi_q, phi_k = conv.query_key_features(q, k, mask)
    matrix = (phi_q @ phi_k.mT) * mask.dense().float()
    assert_close(conv.edge_attention(x, edges, mask), matrix[:, edges[0], edges[1]])


def test_dynamic_walks_follow_the_attention():
    """From the hub of a star, the leaf that is attended to most is visited most."""
    star = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
    conv = GKATConv(2, 2, feature_map="relu", bias=False)
    with torch.no_grad():
        for linear in (conv.query, conv.key):
            linear.weight.copy_(torch.eye(2))
    x = torch.tensor([[1.0, 0.0], [4.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    walks = DynamicWalks(star, 4, walks=RandomWalkMask(num_walks=4000, length=1))
    before = walks.mask
    expected = conv.edge_attention(x, star, before)[0, :3]
    after = walks.redraw(conv, x)
    assert after is walks.mask and after is not before
    counts = after.walks.nodes[0, :, 1].bincount(minlength=4)[1:] / 4000
    assert_close(counts, expected / expected.sum(), rtol=0, atol=0.03)
    assert counts[2] == 0
    again = walks.redraw(conv, torch.zeros(4, 2))  # nothing is attended to: all edges alike
    counts = again.walks.nodes[0, :, 1].bincount(minlength=4)[1:] / 4000
    assert_close(counts, torch.full((3,), 1 / 3), rtol=0, atol=0.03)


# --- sketches ----------------------------------------------------------------------------------


def test_graphots_are_a_kernel_of_features_and_topology():
    edges, x = random_graph(15, 25), torch.rand(16, 3)
    mask = RandomWalkMask(num_walks=10)(edges, 16)
    phi = torch.nn.functional.elu(x) + 1
    exact = mask.dense().float() * (phi @ phi.mT)
    errors = [float((g @ g.mT - exact).square().mean().sqrt())
              for g in (graphots(x, mask, dim) for dim in (64, 4096))]  # fmt: skip
    assert errors[1] < errors[0] / 4 and errors[1] < 0.05 * exact.abs().max()
    assert graphots(x, mask, 8, seed=1).equal(graphots(x, mask, 8, seed=1))
    with pytest.raises(ValueError, match=r"a mask of 16 nodes needs x of shape \(16, channels\)"):
        graphots(x[:3], mask, 8)
    with pytest.raises(ValueError, match="dim must be at least 1"):
        graphots(x, mask, 0)


# --- wide ranges -------------------------------------------------------------------------------


def rings(*sizes: int) -> torch.Tensor:
    """Rings one after the other, as PyG joins graphs."""
    begin = [sum(sizes[:i]) for i in range(len(sizes))]
    once = [torch.stack([torch.arange(n), torch.arange(1, n + 1) % n]) + b
            for n, b in zip(sizes, begin, strict=True)]  # fmt: skip
    return both_directions(torch.cat(once, 1))


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("scale", [150.0, 2000.0])
@pytest.mark.parametrize(
    "make",
    [
        WALKS,
        lambda e, n, w: Diffusion(e, 0.5, num_nodes=n),
        lambda e, n, w: TreeExponential(e[:, (e[0] - e[1]).abs() == 1], num_nodes=n),
        lambda e, n, w: BlockDiagonal([Diffusion(rings(12)), Diffusion(rings(9))]),
        lambda e, n, w: Scaled(Packing((torch.arange(n) < 12).long()), right=torch.rand(n)),
    ],
)
def test_a_loud_graph_does_not_hush_the_others(make, scale, explicit):
    """Additive features are exponentials: each graph of a batch has a scale of its own."""
    torch.manual_seed(0)
    conv = GKATConv(5, 4, 3, feature_map="additive", explicit=explicit)
    mask, x = make(rings(12, 9), 21, None), torch.randn(21, 5)
    x[12:] *= scale
    out = conv(x, mask=mask)
    quiet = conv(x[:12], mask=Dense(mask.dense()[:12, :12]))
    assert_close(out[:12], quiet, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("explicit", [False, True])
def test_one_graph_with_a_wide_range(explicit):
    """A long ring, loud on one side: float32 cannot hold all keys at one scale."""
    torch.manual_seed(0)
    conv = GKATConv(5, 4, 3, feature_map="additive", explicit=explicit)
    mask, x = WALKS(rings(60), 60, None), torch.randn(60, 5)
    x[30:] *= 150
    out = conv(x, mask=mask)
    assert out.dtype == torch.float32
    expected = conv.double()(x.double(), mask=mask).float()
    assert_close(out[:30], expected[:30], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [10.0, 40.0, 100.0])
def test_random_features_of_each_graph_have_a_scale_of_their_own(scale):
    """They fall as exp(-|k|^2 / 2): beside a quiet graph a loud one would be all zeros."""
    torch.manual_seed(0)
    conv = GKATConv(5, 4, 3, feature_map="softmax", num_features=16)
    mask, x = WALKS(rings(12, 9), 21, None), torch.randn(21, 5)
    x[12:] *= scale
    out = conv(x, mask=mask)
    assert out.dtype == torch.float32
    for graph in (slice(0, 12), slice(12, 21)):
        alone = conv.double()(x[graph].double(), mask=Dense(mask.dense()[graph, graph].double()))
        conv.float()
        assert_close(
            out[graph], alone.float(), rtol=1e-3, atol=1e-3 * float(alone.detach().abs().max())
        )
