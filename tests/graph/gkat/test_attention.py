"""Exact kernels on small graphs, random features on large ones, and weights of single edges."""

import pytest
import torch
from torch.testing import assert_close

from tests.graph.gkat.layers import FEATURE_MAPS, WALKS
from tests.graph.graphs import EMPTY, random_graph, random_tree, rings
from vit_rpe.attention import masked_attention, masked_softmax
from vit_rpe.graph import RWGNK, Diffusion, DiffusionKernel, GKATConv, GraphMask
from vit_rpe.graph.gkat import attention as attention_module
from vit_rpe.masks import Dense

SIZES = (5, 1, 40, 12, 1)


def batch_of(sizes: tuple[int, ...]) -> torch.Tensor:
    """The graph of each node; graph 1 of the batch has no nodes."""
    graph = [0, *range(2, len(sizes) + 1)]
    return torch.tensor(graph).repeat_interleave(torch.tensor(sizes))


def definition(conv: GKATConv, x: torch.Tensor, mask: GraphMask) -> torch.Tensor:
    """The layer by whole matrices."""
    q, k, v = conv.queries_keys_values(x)
    if conv.attention.softmax is not None:
        result = masked_softmax(q, k, v, mask)
    else:
        result = masked_attention(*conv.attention.query_key_features(q, k, mask), v, mask)
    return result.movedim(0, 1).flatten(1) + conv.bias


@pytest.mark.parametrize("make", [WALKS, DiffusionKernel(0.5)], ids=["rwgnk", "diffusion"])
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("learn_lam", [False, True])
def test_small_graphs_are_exact(make, feature_map, learn_lam):
    """Values and gradients, of lam too, of graphs of very unequal size, by default."""
    torch.manual_seed(0)
    conv = GKATConv(5, 4, 3, feature_map=feature_map, mask=make, learn_lam=learn_lam)
    conv = conv.double().eval()
    x = torch.randn(sum(SIZES), 5, dtype=torch.float64, requires_grad=True)
    edges = rings(*SIZES)
    mask: GraphMask = make(edges, num_nodes=len(x))  # type: ignore[assignment]
    if learn_lam:
        assert conv.log_lam is not None
        with torch.no_grad():
            conv.log_lam.copy_(torch.tensor([-1.0, 0.0, 0.2]))
        mask = mask.with_values(lam=conv.log_lam.exp())
    expected = definition(conv, x, mask)
    grad = torch.randn_like(expected)
    leaves = [x, *conv.parameters()]
    wanted = torch.autograd.grad(expected, leaves, grad, retain_graph=True)
    batch = batch_of(SIZES)
    for out in (conv(x, edges), conv(x, edges, batch=batch), conv(x, mask=make(edges))):
        assert_close(out, expected, rtol=1e-7, atol=1e-7)
        found = torch.autograd.grad(out, leaves, grad, retain_graph=True)
        for a, b in zip(found, wanted, strict=True):
            assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert all(g.abs().max() > 1e-6 for g in wanted)


def test_large_graphs_have_random_features(monkeypatch):
    """Each graph of a batch as if it was alone; exact_kernel decides for good."""
    monkeypatch.setattr(attention_module, "EXACT_NODES", 10)
    sizes, exact = (4, 11, 3, 9, 12, 2), (0, 2, 3, 5)
    edges, x = rings(*sizes), torch.randn(sum(sizes), 5, requires_grad=True)
    mask = WALKS(edges)
    assert mask.known_parts().part_sizes == sizes
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for chosen in (None, True, False):
        torch.manual_seed(0)
        conv = GKATConv(5, 4, 2, mask=WALKS, exact_kernel=chosen)
        out, wanted = conv(x, mask=mask), definition(conv, x, mask)
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            own = slice(start, start + size)
            same = torch.allclose(out[own], wanted[own], rtol=1e-4, atol=1e-5)
            assert same == (i in exact if chosen is None else chosen)
            alone = Dense(mask.dense()[own, own].float(), nonnegative=True)
            assert_close(out[own], conv(x[own], mask=alone), rtol=1e-3, atol=1e-4)
    grads = torch.autograd.grad(GKATConv(5, 4, 2)(x, mask=mask).square().sum(), x)[0]
    assert (grads.abs().sum(1) > 0).all()


def test_the_exact_kernel_under_a_mask_with_negative_entries():
    """Softmax has no logarithm of it: the matrix is multiplied."""
    signed, x = Dense(torch.rand(5, 5) - 0.3), torch.randn(5, 5)
    assert GKATConv(5, 4).attention.exact_parts(signed.in_parts([5])) is False
    conv = GKATConv(5, 4, exact_kernel=True, bias=False)
    q, k, v = conv.queries_keys_values(x)
    weights = (q @ k.mT / 2).exp() * signed.dense()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    assert_close(conv(x, mask=signed), expected[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("feature_map", ["softmax", "elu", "additive"])
@pytest.mark.parametrize("exact", [None, False, True])
@pytest.mark.parametrize("make", [WALKS, DiffusionKernel(0.5)], ids=["rwgnk", "diffusion"])
@pytest.mark.parametrize("limit", [6, 512])
def test_weights_of_edges_are_those_of_the_result(feature_map, exact, make, limit, monkeypatch):
    """With all pairs as edges the weights of a row sum to 1 and give the result."""
    torch.manual_seed(0)
    n = 13
    conv = GKATConv(5, 4, 3, feature_map=feature_map, exact_kernel=exact, mask=make, bias=False)
    conv, x = conv.double().eval(), torch.randn(n, 5, dtype=torch.float64)
    monkeypatch.setattr(attention_module, "EXACT_NODES", limit)
    mask = make(rings(8, 5))
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n)).mT
    out, (edges, alpha) = conv(x, pairs, mask=mask, return_attention_weights=True)
    assert edges.equal(pairs) and alpha.shape == (n * n, 3)
    matrix = alpha.new_zeros(3, n, n)
    matrix[:, pairs[1], pairs[0]] = alpha.mT  # from sources to targets
    assert_close(matrix.sum(-1), torch.ones(3, n, dtype=torch.float64))
    v = conv.queries_keys_values(x)[2]
    assert_close((matrix @ v).movedim(0, 1).flatten(1), out)
    assert (matrix[:, :8, 8:] == 0).all()
    assert not matrix.mT.allclose(matrix)
    _, (few, some) = conv(x, rings(8, 5), mask=mask, return_attention_weights=True)
    assert_close(some, matrix[:, few[1], few[0]].mT)
    assert conv(x, pairs, mask=mask).equal(out)


def test_weights_of_edges_have_gradients():
    conv = GKATConv(5, 4, 2, mask=WALKS, learn_lam=True)
    x, edges = torch.randn(9, 5, requires_grad=True), random_tree(9)
    _, (_, alpha) = conv(x, edges, return_attention_weights=True)
    alpha.square().sum().backward()
    assert x.grad is not None and x.grad.abs().max() > 1e-6
    assert conv.log_lam is not None and conv.log_lam.grad.abs().min() > 1e-8
    _, (none, weights) = conv(torch.empty(0, 5), EMPTY, return_attention_weights=True)
    assert none.shape == (2, 0) and weights.shape == (0, 2)
    with pytest.raises(ValueError, match="return_attention_weights needs edge_index"):
        conv(x, mask=WALKS(edges), return_attention_weights=True)


def test_attention_at_the_edges_of_an_exact_layer():
    """Up to a factor for each node that walks leave."""
    edges, x = random_graph(12, 20), torch.randn(13, 5)
    conv = GKATConv(5, 4, 3, mask=WALKS).eval()
    mask = WALKS(edges, num_nodes=13)
    q, k, _ = conv.queries_keys_values(x)
    matrix = (q @ k.mT / 2).exp() * mask.dense().float()
    ratio = conv.edge_attention(x, edges, mask) / matrix[:, edges[0], edges[1]]
    for node in range(12):
        own = ratio[:, edges[0] == node]
        assert_close(own, own[:, :1].expand_as(own), rtol=1e-4, atol=1e-5)


def test_a_negative_lam_is_no_promise():
    """A kernel of a learned lam may have negative entries: only the layer's own lam may not."""
    mask = RWGNK()(random_tree(8))
    assert mask.nonnegative
    kernel = type(mask)(mask.visits, 0.5)
    assert kernel.nonnegative and not kernel.with_values(lam=torch.tensor(-1.0)).nonnegative
    assert not type(mask)(mask.visits, torch.tensor(0.5)).nonnegative
    assert not Diffusion(random_tree(8)).nonnegative
