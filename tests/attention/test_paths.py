"""Each path gives what the definition gives: values, gradients, precisions, empty rows, padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zoo import BATCH, HEADS, SCANNABLE, ZOO, own_tensors, rand, randn, with_tensors
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.cpu import build
from vit_rpe.attention.reference import masked_attention
from vit_rpe.features import (
    ELUFeatures,
    HyperbolicRandomFeatures,
    PositiveRandomFeatures,
    ReLUFeatures,
    SquareFeatures,
)
from vit_rpe.masks import (
    BlockDiagonal,
    Bordered,
    Causal,
    Dense,
    Exponential,
    Mask,
    Ones,
    Packing,
    Padding,
    Scaled,
    Toeplitz,
)

DIM, VALUES = 6, 4
FEATURES = {
    "relu": ReLUFeatures,
    "elu": ELUFeatures,
    "square": SquareFeatures,
    "favor": lambda: PositiveRandomFeatures(DIM, 10),
    "hyperbolic": lambda: HyperbolicRandomFeatures(DIM, 10, unit_norm=True),
}
EVERY_PATH = [(name, path) for name in ZOO for path in ("auto", "explicit", "product")]
EVERY_PATH += [(name, "scan") for name in SCANNABLE]
# row sums of a mask of both signs may cancel, which costs any method digits
POSITIVE = [(name, path) for name, path in EVERY_PATH if "signed" not in name]


def inputs(mask: Mask, features: str = "elu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k = (randn(BATCH, HEADS, mask.length, DIM) for _ in range(2))
    q, k = FEATURES[features]().double()(q, k)
    return q, k, randn(BATCH, HEADS, mask.length, VALUES)


@pytest.mark.parametrize(("name", "path"), EVERY_PATH)
def test_equals_the_definition(name, path):
    mask = ZOO[name]()
    for features in FEATURES:
        q, k, v = inputs(mask, features)
        expected = masked_attention(q, k, v, mask)
        for budget in (None, 1, 3000):
            out = masked_linear_attention(q, k, v, mask, path=path, budget=budget)
            torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "path"), POSITIVE)
def test_float32_equals_the_definition(name, path):
    mask = ZOO[name]()
    q, k, v = inputs(mask)
    expected = masked_attention(q, k, v, mask).float()
    mask = with_tensors(mask, tuple(t.detach().float() for t in own_tensors(mask)))
    out = masked_linear_attention(q.float(), k.float(), v.float(), mask, path=path)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "path"), POSITIVE)
def test_promise_of_no_negative_entry_changes_nothing(name, path):
    mask = ZOO[name]()
    phi = ELUFeatures()
    q, k, v = (randn(BATCH, HEADS, mask.length, n) for n in (DIM, DIM, VALUES))
    expected = masked_attention(*phi(q, k), v, mask)
    promise(mask)
    out = masked_linear_attention(q, k, v, mask, features=phi, path=path)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


def promise(mask: Mask) -> None:
    """Say of a mask and of its parts that no entry is negative."""
    mask.nonnegative = True
    for part in mask.parts():
        promise(part)


@pytest.mark.parametrize(("name", "path"), EVERY_PATH)
def test_gradients(name, path):
    mask = ZOO[name]()
    leaves = (*(t.requires_grad_() for t in inputs(mask)), *own_tensors(mask))

    def fast(q, k, v, *tensors):
        return masked_linear_attention(q, k, v, with_tensors(mask, tensors), path=path, budget=3000)

    def definition(q, k, v, *tensors):
        return masked_attention(q, k, v, with_tensors(mask, tensors))

    torch.autograd.gradcheck(fast, leaves, fast_mode=True, atol=1e-4)
    out_grad = randn(BATCH, HEADS, mask.length, VALUES)
    grads = [torch.autograd.grad(f(*leaves), leaves, out_grad) for f in (fast, definition)]
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-7)


@given(
    grid=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    lead=st.sampled_from([(), (3,), (2, 3), (1, 3)]),
    prefix=st.integers(0, 2),
    padded=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    path=st.sampled_from(["auto", "explicit", "product", "scan"]),
    one_sided=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_any_grid_border_padding_and_dtype(grid, lead, prefix, padded, dtype, path, one_sided):
    rates, weights = rand(3, 2, len(grid)), rand(3, 2)
    inner = Exponential(rates.to(dtype), weights.to(dtype), grid, (0,) if one_sided else ())
    mask: Mask = Bordered(inner if path == "scan" else inner.toeplitz(), prefix)
    if padded:
        keep = torch.rand(*lead[:-1], 1, mask.length) < 0.8
        mask = Scaled(mask, right=keep)
    q, k, v = (torch.rand(*lead, mask.length, 3, dtype=dtype) + 0.1 for _ in range(3))
    out = masked_linear_attention(q, k, v, mask, path=path, budget=2000)
    expected = masked_attention(q.double(), k.double(), v.double(), mask)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "path"), POSITIVE)
def test_bfloat16_autocast(name, path):
    mask = ZOO[name]()
    q, k, v = inputs(mask)
    expected = masked_attention(q, k, v, mask).float()
    tensors = tuple(t.detach().float().requires_grad_() for t in own_tensors(mask))
    mask = with_tensors(mask, tensors)
    q, k, v = (t.float().requires_grad_() for t in (q, k, v))
    with torch.autocast("cpu", torch.bfloat16):
        out = masked_linear_attention(q, k, v, mask, path=path)
    out.float().sum().backward()
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (q, k, v, *tensors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("path", ["explicit", "product"])
def test_half_precision_inputs_keep_their_dtype(dtype, path):
    mask = ZOO["toeplitz_2d"]()
    q, k, v = inputs(mask)
    out = masked_linear_attention(q.to(dtype), k.to(dtype), v.to(dtype), mask, path=path)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), masked_attention(q, k, v, mask), rtol=2e-2, atol=2e-2)


def test_float16_autocast_does_not_overflow():
    length = 600
    q = k = torch.full((1, 1, length, 32), 4.0)
    v = torch.randn(1, 1, length, 8)
    with torch.autocast("cpu", torch.float16):
        for path in ("explicit", "scan"):
            out = masked_linear_attention(q, k, v, Ones(length), path=path)
            torch.testing.assert_close(out[..., 0, :], v.mean(-2), rtol=1e-2, atol=1e-3)


def hidden(keep: torch.Tensor, path: str) -> list[Mask]:
    """Masks on a 4 x 3 grid that hide the keys that are not kept."""
    inner = Exponential(rand(HEADS, 2), rand(HEADS, 2), (4, 3))
    grid = inner if path == "scan" else inner.toeplitz()
    masks: list[Mask] = [Padding(keep), Scaled(grid, right=keep), Scaled(grid, right=keep.double())]
    return [*masks, Scaled(Bordered(grid, 0), right=keep), Bordered(Scaled(grid, right=keep), 0)]


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -1e30])
@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_what_is_padded_leaves_no_trace(path, garbage):
    keep = torch.tensor([True, True, False, True, True, False, True, True, True, True, False, True])
    for mask in hidden(keep.expand(BATCH, 1, 12), path):
        results = []
        q, k, v = inputs(mask)
        for filler in (0.0, garbage):
            leaves = [t.masked_fill(~keep[:, None], filler) for t in (k, v)]
            kg, vg = (t.clone().requires_grad_() for t in leaves)
            out = masked_linear_attention(q, kg, vg, mask, path=path)
            grads = torch.autograd.grad(out.sum(), (kg, vg))
            results.append([out, *grads])
        for clean, dirty in zip(*results, strict=True):
            assert torch.equal(clean, dirty)
        garbled = q.masked_fill(~keep[:, None], garbage)
        out = masked_linear_attention(garbled, *leaves, mask, path=path)
        assert torch.equal(out[..., keep, :], results[0][0][..., keep, :])


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_padding_equals_the_shorter_sequence(path):
    rates, weights = rand(HEADS, 2), rand(HEADS, 2)

    def mask(n: int) -> Mask:
        exponential = Exponential(rates, weights, (n, 3))
        return exponential if path == "scan" else exponential.toeplitz()

    q, k, v = (randn(BATCH, HEADS, 15, 4).abs() for _ in range(3))
    keep = torch.arange(15) < 9
    padded = masked_linear_attention(q, k, v, Scaled(mask(5), right=keep), path=path)
    short = masked_linear_attention(*(t[..., :9, :] for t in (q, k, v)), mask(3), path=path)
    torch.testing.assert_close(padded[..., :9, :], short)


@pytest.mark.parametrize("path", ["explicit", "product"])
def test_packed_segments_equal_separate_calls(path):
    segments = torch.tensor([3, 3, 1, 3, 8, 1, 1, 8])
    q, k, v = (randn(BATCH, HEADS, 8, 4).abs() for _ in range(3))
    packed = masked_linear_attention(q, k, v, Packing(segments), path=path)
    for segment in (1, 3, 8):
        own = segments == segment
        alone = masked_linear_attention(
            *(t[..., own, :] for t in (q, k, v)), Ones(int(own.sum())), path=path
        )
        torch.testing.assert_close(packed[..., own, :], alone)


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_packed_grids_equal_separate_calls(path):
    masks = [Exponential(rand(HEADS, 1), rand(HEADS, 1), grid) for grid in [(3, 4), (2, 2), (5, 1)]]
    parts: list[Mask] = [m if path == "scan" else m.toeplitz() for m in masks]
    mask = BlockDiagonal([Bordered(part, 1) for part in parts])
    q, k, v = (randn(BATCH, HEADS, mask.length, 4).abs() for _ in range(3))
    packed = masked_linear_attention(q, k, v, mask, path=path).split(mask.lengths, -2)
    pieces = zip(*(t.split(mask.lengths, -2) for t in (q, k, v)), mask.masks, strict=True)
    for together, piece in zip(packed, pieces, strict=True):
        torch.testing.assert_close(together, masked_linear_attention(*piece, path=path))


class TestEmptyRows:
    @pytest.mark.parametrize(("name", "path"), EVERY_PATH)
    def test_no_key_at_all(self, name, path):
        mask = ZOO[name]()
        q, k, v = (t.requires_grad_() for t in inputs(mask))
        out = masked_linear_attention(q, k * 0, v, mask, path=path)
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert (out == 0).all() and all(g.isfinite().all() for g in grads)

    @pytest.mark.parametrize(("name", "path"), EVERY_PATH)
    def test_small_features_are_legitimate(self, name, path):
        mask = ZOO[name]()
        q, k, v = inputs(mask)
        out = masked_linear_attention(q * 1e-60, k * 1e-80, v, mask, path=path)
        torch.testing.assert_close(out, masked_attention(q, k, v, mask), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("path", ["explicit", "product", "scan"])
    def test_causal_query_before_the_first_kept_key(self, path, dtype):
        grid = Exponential(torch.rand(3, 1).to(dtype), torch.ones(3, 1).to(dtype), (6, 4), (0,))
        mask = Scaled(grid if path == "scan" else grid.toeplitz(), right=torch.arange(24) >= 8)
        q, k, v = (torch.rand(2, 3, 24, 5, dtype=dtype, requires_grad=True) for _ in range(3))
        out = masked_linear_attention(q, k, v, mask, path=path)
        assert (out[..., :8, :] == 0).all() and (out[..., 8:, :] != 0).any(-1).all()
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert all(g.isfinite().all() for g in grads)

    @pytest.mark.parametrize("path", ["explicit", "product"])
    def test_sums_that_cancel(self, path):
        matrix = torch.tensor([[0.1, 0.2, -0.3], [1, 1, 1], [1, -1, 0.5]], dtype=torch.float64)
        ones, v = torch.ones(3, 2, dtype=torch.float64), randn(3, 2)
        out = masked_linear_attention(ones, ones, v, Dense(matrix), path=path)
        assert (out[0] == 0).all()
        torch.testing.assert_close(out, masked_attention(ones, ones, v, Dense(matrix)))

    @pytest.mark.parametrize("path", ["explicit", "product"])
    def test_negative_sums_keep_their_sign(self, path):
        matrix = torch.tensor([[-1.0, -3.0], [2.0, -0.5]], dtype=torch.float64)
        ones, v = torch.ones(2, 1, dtype=torch.float64), randn(2, 2)
        out = masked_linear_attention(ones, ones, v, Dense(matrix), path=path)
        torch.testing.assert_close(out, (matrix @ v) / matrix.sum(-1, keepdim=True))

    def test_padded_away(self):
        keep = torch.zeros(2, 1, 6, dtype=torch.bool)
        keep[0, 0, 2] = True
        q, k, v = (torch.rand(2, 3, 6, 4) for _ in range(3))
        for path in ("explicit", "product", "scan"):
            out = masked_linear_attention(q, k, v, Padding(keep), path=path)
            assert (out[1] == 0).all()
            torch.testing.assert_close(out[0], v[0, :, 2:3].expand(3, 6, 4))


def wide_tables() -> dict[str, torch.Tensor]:
    ramp = torch.linspace(-10, 10, 27)
    peaked = torch.full((27, 27), -10.0)
    peaked[3, 20] = 10.0
    return {
        "ramp": (ramp[:, None] / 2 + ramp / 2).exp(),
        "peaked": peaked.exp(),
        "random": (torch.rand(27, 27) * 20 - 10).exp(),
    }


@pytest.mark.parametrize("table", ["ramp", "peaked", "random"])
@pytest.mark.parametrize("path", ["explicit", "product"])
def test_tables_of_wide_range(path, table):
    mask = Toeplitz(wide_tables()[table].requires_grad_(), (14, 14))
    q, k = (torch.randn(2, 196, 16).relu() for _ in range(2))
    v = torch.randn(2, 196, 8)
    out = masked_linear_attention(q, k, v, mask, path=path)
    expected = masked_attention(q.double(), k.double(), v.double(), mask)
    error = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 1e-4
    (grad,) = torch.autograd.grad(out.sum(), mask.offsets)
    assert grad.isfinite().all()


def test_scan_over_many_blocks():
    for grid, one_sided in [((40, 7), ()), ((333,), (0,)), ((9, 4, 5), (0,)), ((70, 3), (1,))]:
        mask = Exponential(rand(HEADS, 2, len(grid)), rand(HEADS, 2), grid, one_sided)
        q, k, v = (rand(BATCH, HEADS, mask.length, 4) for _ in range(3))
        expected = masked_attention(q, k, v, mask)
        for budget in (None, 1):
            out = masked_linear_attention(q, k, v, mask, path="scan", budget=budget)
            torch.testing.assert_close(out, expected)


def test_scan_of_a_long_causal_sequence():
    length = 1000
    q, k, v = (rand(2, length, 4) for _ in range(3))
    out = masked_linear_attention(q, k, v, Causal(length), path="scan")
    torch.testing.assert_close(out, masked_attention(q, k, v, Causal(length)))


def test_steep_rates_do_not_overflow():
    mask = Exponential(torch.tensor([300.0]), torch.ones(1), (50, 3))
    q, k, v = (torch.rand(150, 4) + 0.1 for _ in range(3))
    for path in ("explicit", "product", "scan"):
        out = masked_linear_attention(q, k, v, mask, path=path)
        torch.testing.assert_close(out, v, rtol=1e-4, atol=1e-4)  # each query sees itself alone


def test_leading_dims_broadcast():
    mask = Toeplitz(rand(3, 7), (4,))
    q, k, v = rand(2, 1, 4, 5), rand(3, 4, 5), rand(4, 2)
    for path in ("explicit", "product"):
        out = masked_linear_attention(q, k, v, mask, path=path, budget=1)
        expected = masked_attention(q, k.expand(2, 3, 4, 5), v.expand(2, 3, 4, 2), mask)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_mask_may_have_more_samples_than_the_queries(path):
    grid = Exponential(rand(3, 1, 2), rand(3, 1, 2), (6, 7))
    mask = Scaled(grid if path == "scan" else grid.toeplitz(), right=rand(3, 1, 42))
    q, k, v = (rand(1, 2, 42, 4) for _ in range(3))
    out = masked_linear_attention(q, k, v, mask, path=path, budget=5000)
    torch.testing.assert_close(out, masked_attention(q, k, v, mask))


@pytest.mark.parametrize("budget", [None, 1])
@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_empty_batch(path, budget):
    q = torch.ones(0, 2, 6, 4, requires_grad=True)
    exponential = Exponential(torch.ones(2, 1), torch.ones(2, 1), (2, 3))
    for mask in (exponential, Causal(6), Scaled(Bordered(Causal(5), 1), right=torch.ones(6))):
        out = masked_linear_attention(q, q, q, mask, path=path, budget=budget)
        assert out.shape == q.shape
        out.sum().backward()


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_the_result_may_be_changed_in_place(path):
    grid = Exponential(rand(HEADS, 1), rand(HEADS, 1), (3, 4))
    mask = grid if path == "scan" else Bordered(grid.toeplitz(), 1)
    q, k, v = (rand(BATCH, HEADS, mask.length, 4).requires_grad_() for _ in range(3))
    expected = masked_linear_attention(q, k, v, mask, path=path) + 1
    out = masked_linear_attention(q, k, v, mask, path=path)
    out += 1
    torch.testing.assert_close(out, expected)
    if (
        path == "explicit" and build.is_built()
    ):  # it keeps its result for the backward pass, as torch's attention does
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    else:
        out.sum().backward()


def weights_that_hide(length: int) -> list[Mask]:
    """Masks whose weights of tokens are learned, and some of them exactly 0."""
    right, left = rand(length), rand(HEADS, length)
    right[[1, 4]], left[:, 2] = 0.0, 0.0
    return [
        Scaled(Ones(length), right=right),
        Scaled(toeplitz_of(length), left=left, right=right),
        Bordered(Scaled(toeplitz_of(length - 1), right=right[1:]), 1),
        Scaled(Bordered(Causal(length - 1), 1), right=right),
    ]


def toeplitz_of(length: int) -> Toeplitz:
    return Toeplitz(rand(HEADS, 2 * length - 1), (length,))


@pytest.mark.parametrize("path", ["explicit", "product"])
@pytest.mark.parametrize("index", range(4))
def test_a_learned_weight_of_zero_has_a_gradient(index, path):
    mask = weights_that_hide(9)[index]
    q, k, v = (rand(BATCH, HEADS, 9, 4).requires_grad_() for _ in range(3))
    tensors = own_tensors(mask)

    def fast(q, k, v, *tensors):
        return masked_linear_attention(q, k, v, with_tensors(mask, tensors), path=path)

    # finite differences know nothing of how a definition hides keys
    torch.autograd.gradcheck(fast, (q, k, v, *tensors), fast_mode=False)


@pytest.mark.parametrize("path", ["explicit", "product"])
def test_a_hidden_nan_gives_a_learned_weight_no_nan(path):
    right = rand(9)
    right[4] = 0.0
    right.requires_grad_()
    q, k, v = (rand(BATCH, HEADS, 9, 4) for _ in range(3))
    k[..., 4, :], v[..., 4, :] = torch.nan, torch.inf
    out = masked_linear_attention(q, k, v, Scaled(toeplitz_of(9), right=right), path=path)
    (grad,) = torch.autograd.grad(out.sum(), right)
    assert out.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize("path", ["auto", "explicit", "product"])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_weights_of_higher_precision_than_the_inputs(path, floor):
    q, k, v = (torch.rand(1, 1, 5, 3) + 0.1 for _ in range(3))
    weight = rand(5)
    for mask in (
        Bordered(Scaled(Ones(4), right=weight[1:]), 1),
        Scaled(Causal(5), left=weight),
        Scaled(Bordered(Toeplitz(rand(7), (4,)), 1), right=weight),
        BlockDiagonal([Scaled(Ones(2), left=weight[:2]), Scaled(Causal(3), right=weight[2:])]),
    ):
        out = masked_linear_attention(q, k, v, mask, path=path, floor=floor)
        exact = masked_linear_attention(*(x.double() for x in (q, k, v)), mask, floor=floor)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_floor_does_not_reach_hidden_keys_nor_other_blocks(path):
    q, k, v = (rand(BATCH, HEADS, 9, 4) for _ in range(3))
    k[..., 5:, :], v[..., 5:, :] = torch.nan, torch.nan
    keep = torch.arange(9) < 5
    rates, weights = rand(HEADS, 1), rand(HEADS, 1)

    def mask(n: int) -> Mask:
        grid = Exponential(rates, weights, (n,))
        return grid if path == "scan" else grid.toeplitz()

    short = [x[..., :5, :] for x in (q, k, v)]
    expected = masked_linear_attention(*short, mask(5), path=path, floor=0.3)
    without = masked_linear_attention(*short, mask(5), path=path)
    assert (expected - without).abs().max() > 1e-3
    for hidden in (Scaled(mask(9), right=keep), Scaled(mask(9), right=keep.double())):
        out = masked_linear_attention(q, k, v, hidden, path=path, floor=0.3)
        torch.testing.assert_close(out[..., :5, :], expected)
    k, v = k.nan_to_num(7.0), v.nan_to_num(7.0)
    blocks = BlockDiagonal([mask(5), mask(4)])
    out = masked_linear_attention(q, k, v, blocks, path=path, floor=0.3)
    torch.testing.assert_close(out[..., :5, :], expected)


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_features_do_not_see_hidden_keys(path):
    grid = Exponential(rand(HEADS, 1), rand(HEADS, 1), (9,))
    inner = grid if path == "scan" else grid.toeplitz()
    keep = torch.arange(9) % 4 != 1
    q, k, v = (randn(BATCH, HEADS, 9, DIM) for _ in range(3))
    phi = PositiveRandomFeatures(DIM, 10).double()
    outs = []
    for filler in (0.0, torch.nan, 30.0):
        k, v = (x.masked_fill(~keep[:, None], filler) for x in (k, v))
        for mask in (Scaled(inner, right=keep), Scaled(inner, right=keep.double())):
            outs.append(masked_linear_attention(q, k, v, mask, features=phi, path=path))
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])


@pytest.mark.parametrize("inputs_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
def test_blocks_under_another_autocast(inputs_dtype, autocast):
    mask = ZOO["blocks"]()
    q, k, v = (x.to(inputs_dtype) for x in inputs(mask))
    with torch.autocast("cpu", autocast):
        out = masked_linear_attention(q, k, v, mask)
    expected = masked_attention(*(x.double() for x in (q, k, v)), mask)
    assert out.dtype == inputs_dtype
    torch.testing.assert_close(out.double(), expected, rtol=5e-2, atol=5e-2)


def penalty(mask: Mask, path: str, leaves: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The gradient of a gradient's norm, for a loss that is linear in the result."""
    x, v, *tensors = leaves
    torch.manual_seed(0)
    out = masked_linear_attention(
        x.square(), x.exp(), v, with_tensors(mask, tuple(tensors)), path=path
    )
    (first,) = torch.autograd.grad((out * randn(*out.shape)).sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), leaves)


@pytest.mark.parametrize(("name", "path"), [(n, p) for n, p in EVERY_PATH if p != "auto"])
def test_second_derivatives_are_right_or_refused(name, path):
    mask = ZOO[name]()
    leaves = [randn(BATCH, HEADS, mask.length, n).requires_grad_() for n in (DIM, VALUES)]
    leaves += own_tensors(mask)
    dense = Dense(mask.dense().detach())
    expected = penalty(dense, "explicit", leaves[:2] + [dense.matrix.requires_grad_()])[:2]
    try:
        ours = penalty(mask, path, leaves)[:2]
    except RuntimeError as error:
        assert "path='product', or VIT_RPE_NATIVE=0" in str(error) and path != "product"
        return
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("path", ["explicit", "product", "scan"])
def test_function_transforms(path):
    grid = Exponential(rand(1, 2), rand(1), (3, 4))
    table = Bordered(Toeplitz(rand(5, 5), (3, 3)), 3)
    for mask in [grid] if path == "scan" else [table, ZOO["sparse"]()]:
        check_function_transforms(mask, path)


def check_function_transforms(mask: Mask, path: str) -> None:
    q, k, v = (rand(5, HEADS, mask.length, 3) for _ in range(3))

    def loss(q: torch.Tensor) -> torch.Tensor:
        return masked_linear_attention(q, k, v, mask, path=path).square().sum()

    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(q), expected)
    _, along = torch.func.jvp(loss, (q,), (torch.ones_like(q),))
    torch.testing.assert_close(along, expected.sum())
    batched = torch.func.vmap(lambda *x: masked_linear_attention(*x, mask, path=path))(q, k, v)
    torch.testing.assert_close(batched, masked_linear_attention(q, k, v, mask, path=path))


def test_dropout_keeps_the_normalizer_and_its_gradients():
    mask = Toeplitz(rand(2, 59), (30,))
    q, k = (rand(4, 2, 30, 5).requires_grad_() for _ in range(2))
    v = torch.ones(4, 2, 30, 1, dtype=torch.float64)
    outs = torch.stack([masked_linear_attention(q, k, v, mask, dropout=0.5) for _ in range(200)])
    assert outs.std() > 0.05 and abs(outs.mean() - 1) < 0.02

    def seeded(q, k):
        torch.manual_seed(3)
        return masked_linear_attention(q, k, v, mask, dropout=0.5, budget=2000)

    torch.autograd.gradcheck(seeded, (q, k), fast_mode=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "fast"}, "one of auto, explicit, product, scan"),
        ({"path": "scan"}, "got Toeplitz"),
        ({"budget": 0}, "positive number of bytes"),
        ({"dropout": 0.1, "path": "product"}, "explicit path"),
        ({"q": torch.ones(5, 3)}, r"q ending in \(4, channels\), got \(5, 3\)"),
        ({"k": torch.ones(4, 2)}, "3 and 2"),
        ({"q": torch.ones(4, 0), "k": torch.ones(4, 0)}, "at least one, got 0 and 0"),
        (
            {"v": torch.arange(12).view(4, 3)},
            "v must be of a floating-point dtype, got torch.int64",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    x = torch.ones(4, 3)
    with pytest.raises(ValueError, match=message):
        masked_linear_attention(
            **{"q": x, "k": x, "v": x, "mask": Toeplitz(torch.ones(7), (4,)), **arguments}
        )
