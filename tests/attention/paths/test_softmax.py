"""Every form of softmax attention gives what the definition gives: values, gradients, no keys."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zoo import BATCH, HEADS, ZOO, own_tensors, rand, randn, with_tensors
from vit_rpe.attention import masked_softmax, masked_softmax_attention, plan
from vit_rpe.attention.cpu import CpuSoftmax, build
from vit_rpe.attention.paths import FusedSoftmax, TorchSoftmax
from vit_rpe.attention.plan import AttentionRequest, forget_plans, plan_attention
from vit_rpe.masks import (
    BlockDiagonal,
    Bordered,
    Causal,
    Dense,
    Exponential,
    LowRank,
    Mask,
    Ones,
    Packing,
    Padding,
    Scaled,
    Sparse,
    Toeplitz,
)

DIM, VALUES = 6, 4
FORMS = {
    "auto": [FusedSoftmax(), CpuSoftmax(), TorchSoftmax()],
    "torch": [TorchSoftmax()],
}
NAMES = [name for name in ZOO if "signed" not in name]
EVERY = [(name, form) for name in NAMES for form in FORMS]


def promised(mask: Mask) -> Mask:
    """The mask, which says of itself and of its parts that no entry is negative."""
    mask.nonnegative = True
    for part in mask.parts():
        promised(part)
    return mask


def zoo(name: str) -> Mask:
    return promised(ZOO[name]())


@pytest.fixture
def use(monkeypatch):
    """A function that leaves only some forms."""

    def only(name: str) -> None:
        monkeypatch.setattr(plan, "FORMS", FORMS[name])
        forget_plans()

    return only


def inputs(mask: Mask, spread: float = 1.0) -> list[torch.Tensor]:
    q, k = (spread * randn(BATCH, HEADS, mask.length, DIM) for _ in range(2))
    return [q, k, randn(BATCH, HEADS, mask.length, VALUES)]


@pytest.mark.parametrize(("name", "form"), EVERY)
def test_equals_the_definition(name, form, use):
    use(form)
    mask = zoo(name)
    for spread in (1.0, 30.0):  # logits of some thousands: one key takes all
        q, k, v = inputs(mask, spread)
        for scale in (None, 0.3):
            expected = masked_softmax(q, k, v, mask, scale)
            for budget in (None, 1, 3000):
                out = masked_softmax_attention(q, k, v, mask, scale=scale, budget=budget)
                torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "form"), EVERY)
def test_float32_equals_the_definition(name, form, use):
    use(form)
    mask = zoo(name)
    leaves = [x.requires_grad_() for x in inputs(mask)] + list(own_tensors(mask))
    grad = randn(BATCH, HEADS, mask.length, VALUES)
    expected = masked_softmax(*leaves[:3], with_tensors(mask, tuple(leaves[3:])))
    expected = [expected, *torch.autograd.grad(expected, leaves, grad, allow_unused=True)]
    leaves = [x.detach().float().requires_grad_() for x in leaves]
    out = masked_softmax_attention(*leaves[:3], with_tensors(mask, tuple(leaves[3:])))
    found = [out, *torch.autograd.grad(out, leaves, grad.float(), allow_unused=True)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "form"), EVERY)
def test_gradients(name, form, use):
    use(form)
    mask = zoo(name)
    leaves = (*(x.requires_grad_() for x in inputs(mask)), *own_tensors(mask))

    def fast(q, k, v, *tensors):
        return masked_softmax_attention(q, k, v, with_tensors(mask, tensors), budget=3000)

    def definition(q, k, v, *tensors):
        return masked_softmax(q, k, v, with_tensors(mask, tensors))

    torch.autograd.gradcheck(fast, leaves, fast_mode=True, atol=1e-4)
    grad = randn(BATCH, HEADS, mask.length, VALUES)
    pairs = [torch.autograd.grad(f(*leaves), leaves, grad) for f in (fast, definition)]
    for ours, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-7)


@given(
    grid=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    lead=st.sampled_from([(), (3,), (2, 3), (1, 3)]),
    prefix=st.integers(0, 2),
    padded=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    one_sided=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_grid_border_padding_and_dtype(grid, lead, prefix, padded, dtype, one_sided):
    rates, weights = rand(3, 2, len(grid)).to(dtype), rand(3, 2).to(dtype)
    sides = (0,) if one_sided else ()
    mask: Mask = Bordered(Exponential(rates, weights, grid, sides, nonnegative=True), prefix)
    if padded:
        mask = Scaled(mask, right=torch.rand(*lead[:-1], 1, mask.length) < 0.8)
    q, k, v = (torch.randn(*lead, mask.length, 3, dtype=dtype) for _ in range(3))
    out = masked_softmax_attention(q, k, v, mask)
    expected = masked_softmax(q.double(), k.double(), v.double(), mask)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def with_zeros() -> list[Mask]:
    """Masks of 12 tokens with zeros that hide keys, and rows that are empty."""
    table = rand(HEADS, 7, 5)
    table[:, :, 2:] = 0.0  # no key at the same column or before
    keep = torch.arange(12) % 5 != 2
    right, left = rand(BATCH, 1, 12), rand(HEADS, 12)
    right[..., 4], left[:, 3] = 0.0, 0.0
    grid = Toeplitz(table, (4, 3))
    row, column, corner = torch.zeros(HEADS, 1), rand(HEADS, 1), torch.zeros(HEADS, 1, 1)
    masks = [
        grid,
        Dense(rand(HEADS, 12, 12) * torch.ones(12, 12).triu(3)),
        Scaled(grid, right=keep),
        Scaled(Toeplitz(rand(HEADS, 7, 5), (4, 3)), left=left, right=right),
        Scaled(Ones(12), right=torch.zeros(BATCH, 1, 12, dtype=torch.bool)),
        Bordered(Toeplitz(table[:, :, :], (4, 3)), 1, row.double(), column, corner.double()),
    ]
    return [promised(mask) for mask in masks]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", range(6))
def test_zeros_hide_keys_and_empty_rows_give_zeros(index, dtype, form, use):
    use(form)
    mask = with_zeros()[index]
    leaves = [x.to(dtype).requires_grad_() for x in inputs(mask)]
    tensors = [x.detach().to(dtype).requires_grad_() for x in own_tensors(mask)]
    with_tensors(mask, tuple(tensors))
    empty = (mask.dense() == 0).all(-1)
    out = masked_softmax_attention(*leaves, mask)
    expected = masked_softmax(*leaves, mask)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(out, expected, **tolerance)
    assert empty.any() and (out[empty.expand(out.shape[:-1])] == 0).all()
    grad = randn(*out.shape).to(dtype)
    pairs = [torch.autograd.grad(x, leaves + tensors, grad) for x in (out, expected)]
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)
    for tensor, found in zip(tensors, pairs[0][3:], strict=True):
        assert (found[tensor == 0] == 0).all()


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -1e30])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_padded_leaves_no_trace(garbage, form, dtype, use):
    use(form)
    keep = torch.arange(12) % 5 != 2
    table = rand(HEADS, 7, 5).to(dtype).requires_grad_()
    grid = Toeplitz(table, (4, 3), nonnegative=True)
    masks = [Padding(keep), Scaled(grid, right=keep), Scaled(grid, right=keep.to(dtype))]
    for mask in [*masks, Scaled(Bordered(grid, 0), right=keep), Bordered(masks[1], 0)]:
        promised(mask)
        q, k, v = (x.to(dtype) for x in inputs(mask))
        results = []
        for filler in (0.0, garbage):
            kg, vg = (x.masked_fill(~keep[:, None], filler).requires_grad_() for x in (k, v))
            out = masked_softmax_attention(q, kg, vg, mask)
            grads = torch.autograd.grad(out.sum(), (kg, vg, table), allow_unused=True)
            results.append([x for x in (out, *grads) if x is not None])
        for clean, dirty in zip(*results, strict=True):
            assert torch.equal(clean, dirty)


def test_padding_equals_the_shorter_sequence():
    table = rand(HEADS, 9, 5)
    q, k, v = (randn(BATCH, HEADS, 15, 4) for _ in range(3))
    long = Scaled(Toeplitz(table, (5, 3), nonnegative=True), right=torch.arange(15) < 9)
    short = Toeplitz(table[:, 2:-2], (3, 3), nonnegative=True)
    padded = masked_softmax_attention(q, k, v, long)[..., :9, :]
    torch.testing.assert_close(
        padded, masked_softmax_attention(*(x[..., :9, :] for x in (q, k, v)), short)
    )


def test_packs_equal_separate_calls():
    grids = [(3, 4), (2, 2), (5, 1)]
    parts = [Toeplitz(rand(HEADS, 2 * a - 1, 2 * b - 1), (a, b)) for a, b in grids]
    mask = BlockDiagonal([promised(Bordered(part, 1)) for part in parts])
    q, k, v = (randn(BATCH, HEADS, mask.length, 4) for _ in range(3))
    keep = torch.rand(BATCH, 1, mask.length) < 0.8
    packed = masked_softmax_attention(q, k, v, Scaled(mask, right=keep)).split(mask.lengths, -2)
    pieces = zip(*(x.split(mask.lengths, -2) for x in (q, k, v)), strict=True)
    kept = keep.split(mask.lengths, -1)
    for together, qkv, part, own in zip(packed, pieces, mask.masks, kept, strict=True):
        torch.testing.assert_close(
            together, masked_softmax_attention(*qkv, Scaled(part, right=own))
        )


def test_packed_segments_equal_separate_calls():
    segments = torch.tensor([3, 3, 1, 3, 8, 1, 1, 8])
    q, k, v = (randn(BATCH, HEADS, 8, 4) for _ in range(3))
    packed = masked_softmax_attention(q, k, v, Packing(segments))
    for own in (segments == n for n in (1, 3, 8)):
        alone = masked_softmax_attention(*(x[..., own, :] for x in (q, k, v)), Ones(int(own.sum())))
        torch.testing.assert_close(packed[..., own, :], alone)


class TestPrecision:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("name", ["toeplitz_2d", "bordered", "dense", "padding", "blocks"])
    @pytest.mark.parametrize("autocast", [True, False])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision(self, name, autocast, dtype, form, use):
        use(form)
        mask = zoo(name)
        q, k, v = inputs(mask)
        expected = masked_softmax(q, k, v, mask)
        tensors = tuple(x.detach().float().requires_grad_() for x in own_tensors(mask))
        mask = with_tensors(mask, tensors)
        kind = torch.float32 if autocast else dtype
        leaves = [x.to(kind).requires_grad_() for x in (q, k, v)]
        with torch.autocast("cpu", dtype, enabled=autocast):
            out = masked_softmax_attention(*leaves, mask)
        assert out.dtype == kind
        out.float().sum().backward()
        torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
        assert all(x.grad is not None and x.grad.isfinite().all() for x in (*leaves, *tensors))

    @pytest.mark.parametrize("form", FORMS)
    def test_bfloat16_is_as_exact_as_without_a_mask(self, form, use):
        use(form)
        mask = promised(Toeplitz((2 * randn(HEADS, 27, 27)).exp(), (14, 14)))
        q, k, v = (randn(BATCH, HEADS, 196, 32).bfloat16() for _ in range(3))
        exact, plain = (
            masked_softmax(q.double(), k.double(), v.double(), m) for m in (mask, Ones(196))
        )
        ours = masked_softmax_attention(q, k, v, mask)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        error, limit = ((x - y).abs().max() for x, y in ((ours, exact), (theirs, plain)))
        scale = exact.abs().max() / plain.abs().max()
        assert error <= 2 * limit * max(scale, 1.0) + 1e-5

    def test_weights_of_higher_precision_than_the_inputs(self):
        q, k, v = (torch.randn(1, 1, 5, 3) for _ in range(3))
        weight = rand(5)
        for mask in (
            Bordered(Scaled(Ones(4), right=weight[1:]), 1),
            Scaled(Causal(5), left=weight),
            Scaled(Bordered(Toeplitz(rand(7), (4,)), 1), right=weight),
        ):
            out = masked_softmax_attention(q, k, v, promised(mask))
            assert out.dtype == torch.float32
            expected = masked_softmax(q.double(), k.double(), v.double(), mask).float()
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("budget", [None, 1])
def test_empty_batch(budget):
    q = torch.ones(0, 2, 6, 4, requires_grad=True)
    grid = Exponential(torch.ones(2, 1), torch.ones(2, 1), (2, 3), nonnegative=True)
    border = Scaled(Bordered(Causal(5), 1), right=torch.ones(6), nonnegative=True)
    for mask in (grid, grid.toeplitz(), Causal(6), Ones(6), border):
        out = masked_softmax_attention(q, q, q, mask, budget=budget)
        assert out.shape == q.shape
        out.sum().backward()


def test_leading_dims_broadcast():
    mask = promised(Toeplitz(rand(3, 7), (4,)))
    q, k, v = randn(2, 1, 4, 5), randn(3, 4, 5), randn(4, 2)
    out = masked_softmax_attention(q, k, v, mask)
    expected = masked_softmax(q, k.expand(2, 3, 4, 5), v.expand(2, 3, 4, 2), mask)
    torch.testing.assert_close(out, expected)


def test_dropout_drops_weights_and_keeps_their_mean():
    mask = promised(Toeplitz(rand(2, 59), (30,)))
    q, k = (randn(4, 2, 30, 5).requires_grad_() for _ in range(2))
    v = torch.ones(4, 2, 30, 1, dtype=torch.float64)
    outs = torch.stack([masked_softmax_attention(q, k, v, mask, dropout=0.5) for _ in range(200)])
    assert outs.std() > 0.05 and abs(outs.mean() - 1) < 0.02

    def seeded(q, k):
        torch.manual_seed(3)
        return masked_softmax_attention(q, k, v, mask, dropout=0.5, budget=2000)

    torch.autograd.gradcheck(seeded, (q, k), fast_mode=True)


@pytest.mark.parametrize("name", ["bordered", "sparse", "padding", "causal", "blocks"])
def test_function_transforms(name):
    mask = zoo(name)
    q, k, v = (rand(BATCH, HEADS, mask.length, 3) for _ in range(3))

    def loss(q: torch.Tensor) -> torch.Tensor:
        return masked_softmax_attention(q, k, v, mask).square().sum()

    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(q), expected)
    _, along = torch.func.jvp(loss, (q,), (torch.ones_like(q),))
    torch.testing.assert_close(along, expected.sum())


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives_are_right_or_refused(form, use):
    use(form)
    mask = promised(Toeplitz(rand(HEADS, 7, 5), (4, 3)))
    q, k, v = (x.requires_grad_() for x in inputs(mask))

    def penalty(attend) -> torch.Tensor:
        (first,) = torch.autograd.grad(attend(q, k, v, mask).square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), k)[0]

    if form == "torch" or not build.is_built():
        torch.testing.assert_close(penalty(masked_softmax_attention), penalty(masked_softmax))
    else:
        with pytest.raises(RuntimeError, match="more; VIT_RPE_NATIVE=0 in the environment can"):
            penalty(masked_softmax_attention)


@pytest.mark.parametrize(
    ("mask", "form"),
    [
        (Ones(12), "sdpa"),
        (Causal(12), "sdpa"),
        (Padding(torch.ones(12, dtype=torch.bool)), "sdpa"),
        (Bordered(Ones(11), 1), "sdpa"),
        (Bordered(Ones(11), 1, row=torch.ones(1), nonnegative=True), "torch"),
        (Scaled(Ones(12), right=torch.ones(12), nonnegative=True), "torch"),
        (Scaled(Causal(12), right=torch.ones(12, dtype=torch.bool)), "torch"),
        (Dense(torch.ones(12, 12), nonnegative=True), "torch"),
    ],
)
def test_which_form_is_taken(mask, form):
    q = torch.rand(2, 3, 12, 4)
    planned = plan_attention(AttentionRequest.of(q, q, q, mask, kernel="softmax"))
    assert (planned.kernel, planned.path, planned.form) == ("softmax", "explicit", form)


class TestPromises:
    def test_a_mask_without_it_is_refused(self):
        q = torch.rand(3, 4, 2)
        edges = torch.tensor([[0], [1]])
        makers = [
            lambda **x: Toeplitz(torch.rand(7), (4,), **x),
            lambda **x: Dense(torch.rand(4, 4), **x),
            lambda **x: Sparse(edges, torch.ones(1), 4, **x),
            lambda **x: LowRank(torch.rand(4, 2), torch.rand(4, 2), **x),
            lambda **x: Scaled(Ones(4), right=torch.rand(4), **x),
            lambda **x: Bordered(Ones(3), 1, row=torch.rand(1), **x),
            lambda **x: Exponential(torch.rand(1), torch.rand(1), (4,), **x),
        ]
        for make in makers:
            with pytest.raises(ValueError, match="promise to have no negative entry"):
                masked_softmax_attention(q, q, q, make())
            mask = make(nonnegative=True)
            mask.check()
            torch.testing.assert_close(
                masked_softmax_attention(q, q, q, mask), masked_softmax(q, q, q, mask)
            )

    def test_a_broken_promise_is_found_by_check(self):
        edges = torch.tensor([[0, 1], [1, 2]])
        bad = torch.tensor([0.5, -0.5])
        for mask in (
            Toeplitz(bad.repeat(2)[:3], (2,), nonnegative=True),
            Dense(bad.expand(2, 2), nonnegative=True),
            Sparse(edges, bad, 4, nonnegative=True),
            Scaled(Ones(2), right=bad, nonnegative=True),
            Exponential(torch.ones(2), bad, (4,), nonnegative=True),
            BlockDiagonal([Ones(2), Dense(bad.expand(2, 2), nonnegative=True)]),
        ):
            with pytest.raises(ValueError, match="has . negative values"):
                mask.check()
        mask = LowRank(bad[:, None], bad[:, None], nonnegative=True)
        with pytest.raises(ValueError, match=r"M\[0, 1\] is -0.25"):
            mask.check()
        Exponential(-torch.ones(1), torch.ones(1), (4,), nonnegative=True).check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "positive number of bytes"),
        ({"q": torch.ones(5, 3)}, r"q ending in \(4, channels\), got \(5, 3\)"),
        ({"k": torch.ones(4, 2)}, "3 and 2"),
        ({"v": torch.arange(12).view(4, 3)}, "v must be of a floating-point dtype"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    x = torch.ones(4, 3)
    with pytest.raises(ValueError, match=message):
        masked_softmax_attention(**{"q": x, "k": x, "v": x, "mask": Ones(4), **arguments})
