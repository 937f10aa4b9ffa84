"""The contract of masks, and attention by every path, on every graph mask."""

import pytest
import torch

from tests.graph.graphs import GRAPH_ZOO
from tests.masks.contract import MaskContract
from tests.zoo import BATCH, HEADS, ZOO, float_tensors, own_tensors, rand, randn, with_tensors
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.reference import masked_attention
from vit_rpe.graph import (
    Diffusion,
    Hypercube,
    SeriesKernel,
    TreeExponential,
    TreeFunction,
    WalkKernel,
    expected_walk_kernel,
    grid_edges,
    series_root,
    shortest_path_mask,
)
from vit_rpe.masks import Mask


@pytest.mark.parametrize("name", GRAPH_ZOO)
class TestGraphZoo(MaskContract):
    @pytest.fixture(autouse=True)
    def choose(self, name: str) -> None:
        self.name = name

    def make(self) -> Mask:
        return GRAPH_ZOO[self.name]()

    def amplification(self, exact: torch.Tensor) -> float:
        # exp(z) has the round-off of z, which is |z| times that of its factors
        exponents = exact[exact > 0].log().abs() if "exponential" in self.name else torch.zeros(1)
        return 1 + float(exponents.max())


@pytest.mark.parametrize("path", ["auto", "explicit", "product"])
@pytest.mark.parametrize("name", GRAPH_ZOO)
def test_attention_is_its_definition(name, path):
    mask = GRAPH_ZOO[name]()
    q, k = rand(BATCH, HEADS, mask.length, 4), rand(BATCH, HEADS, mask.length, 4)
    v = randn(BATCH, HEADS, mask.length, 3)
    out = masked_linear_attention(q, k, v, mask, path=path)
    torch.testing.assert_close(out, masked_attention(q, k, v, mask), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["tree_exponential", "diffusion_normalized", "walk_kernel"])
def test_attention_teaches_the_values_of_a_mask(name):
    mask = GRAPH_ZOO[name]()
    places = float_tensors(mask)
    values = [getattr(owner, key).requires_grad_() for owner, key in places]
    q, k, v = (rand(HEADS, mask.length, 2) for _ in range(3))
    grads = []
    for path in ("explicit", "product"):
        out = masked_linear_attention(q, k, v, mask, path=path)
        grads.append(torch.autograd.grad(out.square().sum(), values))
    expected = torch.autograd.grad(masked_attention(q, k, v, mask).square().sum(), values)
    for grad in grads:
        torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-7)
    assert any(float(g.abs().max()) > 1e-4 for g in expected)


def twice_differentiated(product, x, values):
    """Gradients of the gradients of x and of the values, with an outer one that is learned."""
    g = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x).requires_grad_()
    first = torch.autograd.grad(product, [x, *values], g, create_graph=True, materialize_grads=True)
    total = sum((f.square().sum() for f in first), x.new_zeros(()))
    return torch.autograd.grad(total, [x, *values, g], materialize_grads=True)


@pytest.mark.parametrize("name", GRAPH_ZOO)
def test_products_can_be_differentiated_twice(name):
    mask = GRAPH_ZOO[name]()
    values = own_tensors(mask)
    mask = with_tensors(mask, values)
    x = randn(HEADS, mask.length, 2).requires_grad_()
    ours = twice_differentiated(mask.matmul(x), x, values)
    wanted = twice_differentiated(mask.dense() @ x, x, values)
    torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["diffusion_normalized", "series_kernel", "walk_kernel"])
def test_attention_can_be_differentiated_twice(name):
    mask = GRAPH_ZOO[name]()
    values = own_tensors(mask)
    mask = with_tensors(mask, values)
    x, k = randn(HEADS, mask.length, 2).requires_grad_(), rand(HEADS, mask.length, 2)
    ours, wanted = (
        twice_differentiated(out, x, values)
        for out in (
            masked_linear_attention(k, k, x, mask, path="product"),
            masked_attention(k, k, x, mask),
        )
    )
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*GRAPH_ZOO, *ZOO])
def test_no_token_sees_one_of_another_component(name):
    mask = (GRAPH_ZOO | ZOO)[name]()
    part = mask.components()
    if part is not None:
        assert part.shape == (mask.length,)
        assert (mask.dense()[..., part[:, None] != part] == 0).all()
    elif isinstance(mask, TreeExponential | TreeFunction | Diffusion | WalkKernel | SeriesKernel):
        pytest.fail("a mask of a graph knows its components")


@pytest.mark.parametrize("name", GRAPH_ZOO)
@pytest.mark.parametrize("path", ["explicit", "product"])
def test_autocast_leaves_the_mask_in_full_precision(name, path):
    mask = GRAPH_ZOO[name]()
    x = torch.rand(HEADS, mask.length, 4)
    with torch.autocast("cpu", torch.bfloat16):
        product, dense = mask.matmul(x), mask.dense()
        out = masked_linear_attention(x, x, x, mask, path=path)
    torch.testing.assert_close(product, mask.matmul(x))
    torch.testing.assert_close(dense, mask.dense())
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda e: Diffusion(e, lam="hot"), "lam must be a number or a real tensor, got str"),
        (lambda e: Diffusion(e, lam=torch.tensor([1, 2])), "lam .*real tensor, got torch.int64"),
        (lambda e: TreeExponential(e, a=None), "a must be a number .* got NoneType"),
        (lambda e: TreeFunction(e, [1.0, 2.0]), "values must be .* got list"),
        (lambda e: WalkKernel(e), "walks must be what random_walks returns, got Tensor"),
        (lambda e: Hypercube(2.5), "dim must be a whole number, got 2.5"),
        (lambda e: Diffusion(e, tol=None), "tol must be .* got None"),
        (lambda e: Diffusion(e, edge_weight=[1.0, 1.0]), "edge_weight must be a tensor, got list"),
        (
            lambda e: TreeExponential(e, a=torch.rand(2), b=torch.rand(3)),
            r"a and b must have .* got \(2,\) and \(3,\)",
        ),
        (lambda e: shortest_path_mask(e, f=[1.0]), "f must be a function or a real .* got list"),
        (lambda e: expected_walk_kernel(e, num_steps=-1), "num_steps must be at least 0, got -1"),
        (lambda e: expected_walk_kernel(e, num_steps=3, stop=2.0), "stop must be a probability"),
        (lambda e: series_root([1.0]), "series must be a number or a real tensor, got list"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make(grid_edges((2,)))
