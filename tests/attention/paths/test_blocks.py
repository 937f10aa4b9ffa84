"""Attention in the blocks of a mask in parts is that of the whole matrix."""

import pytest
import torch
from torch.testing import assert_close

from tests.graph.graphs import rings
from tests.zoo import rand, randn
from vit_rpe.attention import (
    masked_attention,
    masked_linear_attention,
    masked_softmax,
    masked_softmax_attention,
)
from vit_rpe.attention.cpu import CpuBlockSoftmax, build
from vit_rpe.attention.paths import BlockExplicit, BlockSoftmax
from vit_rpe.attention.paths.padding import padded_parts
from vit_rpe.attention.plan import AttentionRequest, forget_plans, plan_attention
from vit_rpe.features import ReLUFeatures
from vit_rpe.graph import Diffusion, WalkKernel, random_walks
from vit_rpe.masks import Dense, Mask, Scaled

SIZES = {
    "unequal": (5, 1, 40, 3, 70),
    "many": (9,) * 11,
    "even": (40, 40, 40),
    "alone": (1, 1, 1, 90, 1, 36),
    "one": (50,),
}
HEADS = 2


def lams() -> torch.Tensor:
    return rand(HEADS).requires_grad_()


def walk(sizes: tuple[int, ...], lam: torch.Tensor | float) -> Mask:
    walks = random_walks(rings(*sizes), num_nodes=sum(sizes), num_walks=5, num_steps=3)
    return WalkKernel(walks, lam, nonnegative=True)


def heat(sizes: tuple[int, ...], lam: torch.Tensor | float) -> Mask:
    return Diffusion(rings(*sizes), num_nodes=sum(sizes), lam=lam, nonnegative=True)


def scaled(sizes: tuple[int, ...], lam: torch.Tensor | float) -> Mask:
    """A key without weight, and queries with weights."""
    n = sum(sizes)
    right = rand(n)
    right[3] = 0
    return Scaled(walk(sizes, lam), left=rand(n) + 0.5, right=right, nonnegative=True)


def dense(sizes: tuple[int, ...], lam: torch.Tensor | float) -> Mask:
    """With rows and columns of zeros."""
    matrix = torch.block_diag(*(rand(n, n) for n in sizes))
    matrix[2], matrix[:, 4] = 0, 0
    factor = lam[:, None, None] if isinstance(lam, torch.Tensor) else lam
    return Dense(matrix * factor, nonnegative=True)


MAKERS = {"walks": walk, "heat": heat, "scaled": scaled, "dense": dense}


def leaves(n: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [randn(3, HEADS, n, c).to(dtype).requires_grad_() for c in (4, 4, 5)]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(("budget", "compiled"), [(None, False), (700_000, False), (None, True)])
def test_equals_the_whole_matrix(sizes, make, budget, compiled, monkeypatch):
    """Values and gradients, also of lam; in pieces that are made again, too."""
    torch.manual_seed(0)
    if not compiled:
        monkeypatch.setattr(CpuBlockSoftmax, "supports", lambda *_: "is turned off")
        forget_plans()
    n, lam = sum(sizes), lams()
    whole = make(sizes, lam)
    mask = whole.in_parts(sizes)
    q, k, v = leaves(n)
    grad = randn(3, HEADS, n, 5)

    def compare(out: torch.Tensor, expected: torch.Tensor) -> None:
        given = [q, k, v, lam]
        found = [out, *torch.autograd.grad(out, given, grad, retain_graph=True)]
        wanted = [expected, *torch.autograd.grad(expected, given, grad, retain_graph=True)]
        for a, b in zip(found, wanted, strict=True):
            assert_close(a, b, rtol=1e-7, atol=1e-7)

    request = AttentionRequest.of(q, k, v, mask, kernel="softmax", budget=budget)
    in_cpp = compiled and build.is_built() and not isinstance(mask, Scaled)
    assert plan_attention(request).form == ("cpu blocks" if in_cpp else "blocks")
    compare(masked_softmax_attention(q, k, v, mask, budget=budget), masked_softmax(q, k, v, whole))
    if compiled:
        return
    request = AttentionRequest.of(q, k, v, mask, path="explicit", budget=budget)
    assert plan_attention(request).form == "blocks"
    out = masked_linear_attention(
        q, k, v, mask, features=ReLUFeatures(), path="explicit", budget=budget
    )
    compare(out, masked_attention(q.relu(), k.relu(), v, whole))
    signed = masked_linear_attention(q.exp(), k, v, mask, path="explicit", budget=budget)
    assert_close(signed, masked_attention(q.exp(), k, v, whole), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_float32_and_constant_masks(sizes):
    """What is kept of a mask is that of its own values, in each precision."""
    mask = walk(sizes, 0.7).in_parts(sizes)
    for dtype in (torch.float32, torch.float64, torch.float32):
        q, k, v = leaves(sum(sizes), dtype)
        out = masked_softmax_attention(q, k, v, mask)
        assert out.dtype == dtype
        expected = masked_softmax(q.double(), k.double(), v.double(), mask)
        assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    other = mask.with_values(lam=torch.tensor(0.1))
    assert other.part_sizes == sizes
    q, k, v = leaves(sum(sizes))
    out = masked_softmax_attention(q, k, v, other)
    assert_close(out, masked_softmax(q, k, v, other), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
def test_dropout_drops_weights(kernel):
    """On average nothing changes, and what is dropped is drawn once for both passes."""
    torch.manual_seed(0)
    sizes = (6, 9)
    mask = walk(sizes, 0.7).in_parts(sizes)
    q, k, v = (x.detach()[0].exp() for x in leaves(15))

    def attend(p: float) -> torch.Tensor:
        if kernel == "softmax":
            return masked_softmax_attention(q, k, v, mask, dropout=p)
        return masked_linear_attention(q, k, v, mask, path="explicit", dropout=p)

    mean = torch.stack([attend(0.3) for _ in range(3000)]).mean(0)
    assert_close(mean, attend(0.0), rtol=0.1, atol=0.1)
    assert not attend(0.3).equal(attend(0.3))


def test_second_derivatives():
    sizes = (4, 6)
    mask = walk(sizes, 0.7).in_parts(sizes)
    q, k, v = (x.detach()[0].requires_grad_() for x in leaves(10))
    assert torch.autograd.gradgradcheck(
        lambda *x: masked_softmax_attention(*x, mask), (q, k, v), fast_mode=True
    )


@pytest.mark.parametrize("form", [BlockExplicit(), BlockSoftmax()])
def test_what_it_does_not_serve(form):
    q, k, v = leaves(15)
    request = AttentionRequest.of(q, k, v, walk((6, 9), 0.7), kernel=form.kernel)
    assert "needs a mask in parts, got WalkKernel of 15 tokens" in form.supports(request)
    mask = walk((6, 9), 0.7).in_parts((6, 9))
    small = AttentionRequest.of(q, k, v, mask, kernel=form.kernel, budget=100)
    assert "more than the budget of 100 bytes for a part of 9 tokens" in form.supports(small)
    with pytest.raises(ValueError, match="parts of 14 tokens do not make a mask of 15"):
        mask.in_parts((6, 8))


def test_the_plan_takes_the_cheaper_path():
    """Small blocks are explicit; those of thousands of tokens are products."""
    q, k, v = (torch.rand(1, 8, 400, 16) for _ in range(3))
    small = walk((100,) * 4, 0.7).in_parts((100,) * 4)
    features = {"features": ReLUFeatures()}
    assert plan_attention(AttentionRequest.of(q, k, v, small, **features)).form == "blocks"
    q, k, v = (torch.rand(1, 8, 6000, 2) for _ in range(3))
    large = walk((3000, 3000), 0.7).in_parts((3000, 3000))
    assert plan_attention(AttentionRequest.of(q, k, v, large, **features)).path == "product"


# --- padding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [*SIZES.values(), (1,) * 100, (500, 3, 1, 1, 480, 90, 2)])
def test_every_token_has_a_place(sizes):
    parts = padded_parts(sizes, torch.device("cpu"))
    x = torch.arange(1.0, 2 * sum(sizes) * 3 + 1).reshape(2, sum(sizes), 3).requires_grad_()
    places = parts.spread(x)
    assert len(places) == sum(group.places for group in parts.groups)
    back = parts.join([places], torch.Size([2]))
    assert back.equal(x)
    assert (places.abs().sum((1, 2)) > 0).sum() == sum(sizes)  # the others are empty
    weight = torch.randn_like(places)
    (grad,) = torch.autograd.grad((places * weight).sum(), x)
    assert grad.equal(parts.join([weight], torch.Size([2])))


def test_padding_is_limited():
    sizes = (500, 3, 1, 1, 480, 90, 2)
    groups = padded_parts(sizes, torch.device("cpu")).groups
    assert [group.size for group in groups] == [500, 90]  # 3, 1, 1 and 2 are joined or padded
    entries = sum(len(group.starts) * group.size**2 for group in groups)
    assert entries < 1.2 * sum(size**2 for size in sizes)
