"""Tiles with a backward pass by hand: those of autograd, in bfloat16 as exact as torch's."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.zoo import BATCH, HEADS, rand, randn
from vit_rpe.attention import masked_attention, masked_linear_attention
from vit_rpe.attention.paths.tile import TileOptions, attend_tile
from vit_rpe.features import ELUFeatures, FeatureMap, PositiveRandomFeatures, ReLUFeatures
from vit_rpe.masks import Bordered, Dense, Mask, Padding, Scaled, Toeplitz

DIM, VALUES, LENGTH = 6, 4, 13


@pytest.fixture(autouse=True)
def no_compiled_forms(monkeypatch) -> None:
    monkeypatch.setenv("VIT_RPE_NATIVE", "0")


def options(**changes) -> TileOptions:
    return TileOptions(None, torch.float64, by_hand=True, **changes)


def inputs(rows: int = LENGTH, signed: bool = False) -> list[Tensor]:
    shapes = [(BATCH, HEADS, n, d) for n, d in ((rows, DIM), (LENGTH, DIM), (LENGTH, VALUES))]
    q, k, v = (randn(*shape) for shape in shapes)
    return [q, k, v] if signed else [q.abs(), k.abs(), v]


SLABS = {
    "per head": (HEADS, 5, LENGTH),
    "for all heads": (5, LENGTH),
    "per sample": (BATCH, 1, 5, LENGTH),
    "for each": (BATCH, HEADS, 5, LENGTH),
}
OPTIONS = [{}, {"nonnegative": True}, {"floor": 0.1}, {"aligned": True}]


def results(tensors: list[Tensor], options: TileOptions, g: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = attend_tile(*leaves, options)
    return [out, *torch.autograd.grad(out, leaves, g)]


@pytest.mark.parametrize("changes", OPTIONS)
@pytest.mark.parametrize("slab", SLABS)
def test_by_hand_is_autograd(slab, changes):
    signed = "nonnegative" not in changes
    tensors = [*inputs(5, signed), randn(*SLABS[slab]) if signed else rand(*SLABS[slab])]
    g = randn(BATCH, HEADS, 5, VALUES)
    by_hand = results(tensors, options(**changes), g)
    plain = results(tensors, TileOptions(None, torch.float64, **changes), g)
    for ours, expected in zip(by_hand, plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_differences():
    shapes = [(2, 1, 2, 3), (2, 1, 3, 3), (2, 1, 3, 2), (1, 2, 3)]
    tensors = [rand(*shape).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda *x: attend_tile(*x, options()), tensors)
    assert torch.autograd.gradgradcheck(lambda *x: attend_tile(*x, options()), tensors)


@pytest.mark.parametrize("frozen", range(4))
def test_what_wants_no_gradient_gets_none(frozen):
    tensors = [*inputs(5), rand(HEADS, 5, LENGTH)]
    leaves = [x.requires_grad_(i != frozen) for i, x in enumerate(tensors)]
    attend_tile(*leaves, options()).sum().backward()
    assert [x.grad is None for x in leaves] == [i == frozen for i in range(4)]


def test_empty_rows_are_zeros_and_learn_nothing():
    q, k, v = inputs()
    q[..., 2, :] = 0.0
    q.requires_grad_()
    slab = rand(HEADS, LENGTH, LENGTH)
    slab[:, 4] = 0.0
    for dtype in (torch.float64, torch.bfloat16):
        tile = TileOptions(None, dtype, nonnegative=True, by_hand=True)
        out = attend_tile(q, k, v, slab, tile)
        (grad,) = torch.autograd.grad(out.sum(), q)
        assert not out[..., [2, 4], :].any() and out[..., 3, :].any()
        assert not grad[..., [2, 4], :].any() and grad.isfinite().all()


def test_budgets_change_nothing_in_bfloat16():
    mask = Toeplitz(rand(HEADS, 7, 9).float(), (4, 5), nonnegative=True)
    shape = (5, HEADS, 20, DIM)
    q, k, v = (randn(*shape).float().requires_grad_() for _ in range(3))
    found = []
    for budget in (None, 40_000, 5_000, 1):
        with torch.autocast("cpu", torch.bfloat16):
            options = {"features": ReLUFeatures(), "path": "explicit", "budget": budget}
            out = masked_linear_attention(q, k, v, mask, **options)
        found.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for other in found[1:]:
        for ours, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("hidden", ["padding", "inside", "floor"])
def test_hidden_keys_leave_no_trace_in_bfloat16(hidden):
    keep = torch.ones(BATCH, 1, 20, dtype=torch.bool)
    keep[..., 3:6] = False
    toeplitz = Toeplitz(rand(HEADS, 7, 9).float(), (4, 5), nonnegative=True)
    mask: Mask = Scaled(toeplitz, right=keep)
    if hidden == "inside":
        mask = Bordered(Padding(keep[..., 1:]), 1)
    q, k, v = (randn(BATCH, HEADS, 20, DIM).float() for _ in range(3))
    nothing = ~keep[..., None].expand(BATCH, HEADS, 20, DIM)
    k, v = k.masked_fill(nothing, torch.nan), v.masked_fill(nothing, torch.nan)
    floor = 0.1 if hidden == "floor" else 0.0
    with torch.autocast("cpu", torch.bfloat16):
        call = {"features": ReLUFeatures(), "path": "explicit", "floor": floor}
        out = masked_linear_attention(q, k, v, mask, **call)
    sees = slice(1, None) if hidden == "inside" else slice(None)  # prefix tokens see everything
    assert out[..., sees, :].isfinite().all()


# --- errors of bfloat16 -------------------------------------------------------------------------

SIDE = (14, 14)
TOKENS = 1 + SIDE[0] * SIDE[1]


def scales(spread: float) -> Tensor:
    """A factor for each token; e^2 and more apart where the spread is 2."""
    return (spread * torch.randn(BATCH, HEADS, TOKENS, 1)).exp()


def token_inputs(kind: str) -> list[Tensor]:
    """Make q, k, v and the gradient of the result, all exact in bfloat16."""
    q, k, v, g = (torch.randn(BATCH, HEADS, TOKENS, 64) for _ in range(4))
    if kind == "common part":  # of all values: sums that nearly cancel in the backward pass
        v = v + 5.0
    if kind == "wide values":
        v, g = v * scales(2.0), g * scales(2.0)
    if kind == "wide keys":  # small, or softmax would take one key and have no error at all
        q, k = 0.1 * q * scales(1.0), 0.1 * k * scales(1.0)
    return [x.bfloat16() for x in (q, k, v, g)]


def error(ours: Tensor, exact: Tensor) -> float:
    """The relative error of a token, in the root mean square: all count alike, large or small."""
    wrong, size = (x.detach().double().norm(dim=-1) for x in (ours.double() - exact, exact))
    ratio = wrong[size > 0] / size[size > 0]
    return float(ratio.square().mean().sqrt())


def errors(attend, exact, tensors: list[Tensor], g: Tensor) -> list[float]:
    """The errors of a result and its gradients, against the same in float64."""
    found = []
    for call, dtype in ((attend, torch.bfloat16), (exact, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        out = call(*leaves)
        found.append([out, *torch.autograd.grad(out, leaves, g.to(out.dtype))])
    return [error(*pair) for pair in zip(*found, strict=True)]


def masked(features: FeatureMap, table: Tensor):
    def mask(dtype: torch.dtype) -> Bordered:
        return Bordered(Toeplitz(table.to(dtype), SIDE, nonnegative=True), 1)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            call = {"features": features, "path": "explicit"}
            return masked_linear_attention(q, k, v, mask(torch.float32), **call)

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return masked_attention(*deepcopy(features).double()(q, k), v, mask(torch.float64))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What one would write in PyTorch."""
        with torch.autocast("cpu", torch.bfloat16):
            phi_q, phi_k = features(q, k)
            weights = (phi_q @ phi_k.mT) * mask(torch.float32).dense()
            return (weights @ v / weights.sum(-1, keepdim=True)).bfloat16()

    return ours, exact, plain


KINDS = ["normal", "common part", "wide values", "wide keys"]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_at_most_twice_those_of_torchs_attention(kind):
    *tensors, g = token_inputs(kind)
    ours, exact, _ = masked(ReLUFeatures(), torch.rand(HEADS, 27, 27) + 0.05)
    sdpa = F.scaled_dot_product_attention
    found, torchs = (
        errors(*calls, tensors, g)
        for calls in ((ours, exact), (sdpa, lambda q, k, v: (q @ k.mT / 8).softmax(-1) @ v))
    )
    assert all(a <= 2 * b for a, b in zip(found, torchs, strict=True)), (found, torchs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "make", [ELUFeatures, lambda: PositiveRandomFeatures(64, 64)], ids=["elu", "favor"]
)
def test_errors_of_other_features_are_at_most_twice_those_of_plain_pytorch(kind, make):
    """By the middle one of some draws: one token with hardly a gradient can decide a draw."""
    ratios = []
    for _ in range(5):
        *tensors, g = token_inputs(kind)
        ours, exact, plain = masked(make(), torch.rand(HEADS, 27, 27) + 0.05)
        found, plains = (errors(call, exact, tensors, g) for call in (ours, plain))
        ratios.append([a / b for a, b in zip(found, plains, strict=True)])
    assert (torch.tensor(ratios).median(0).values <= 2).all(), ratios


def test_the_gradient_of_a_table_is_as_exact():
    q, k, v, g = token_inputs("common part")
    table = torch.rand(HEADS, 27, 27) + 0.05
    found = []
    for dtype in (torch.float32, torch.float64):
        leaf = table.to(dtype).requires_grad_()
        if dtype == torch.float64:
            out = masked_attention(q.relu().double(), k.relu().double(), v.double(), _mask(leaf))
        else:
            with torch.autocast("cpu", torch.bfloat16):
                call = {"features": ReLUFeatures(), "path": "explicit"}
                out = masked_linear_attention(q, k, v, _mask(leaf), **call)
        found += torch.autograd.grad(out, leaf, g.to(out.dtype))
    assert error(*found) < 0.006


def _mask(table: Tensor) -> Bordered:
    return Bordered(Toeplitz(table, SIDE, nonnegative=True), 1)


def test_the_normalizer_is_not_rounded():
    """Values that are all alike come back as they are, whatever the weights."""
    q, k = (torch.rand(1, 2, TOKENS, 64).bfloat16() for _ in range(2))
    v = torch.full((1, 2, TOKENS, 8), 1.0, dtype=torch.bfloat16)
    mask = Dense(torch.rand(2, TOKENS, TOKENS), nonnegative=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = masked_linear_attention(q, k, v, mask, features=ReLUFeatures(), path="explicit")
    assert torch.equal(out, torch.ones_like(out))
