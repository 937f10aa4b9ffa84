"""What is particular to one mask, and what it refuses."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zoo import exponential, rand, randn, toeplitz
from vit_rpe.masks import (
    BlockDiagonal,
    Bordered,
    Causal,
    Dense,
    Exponential,
    LowRank,
    Ones,
    Packing,
    Padding,
    Scaled,
    Sparse,
    Sum,
    Toeplitz,
)
from vit_rpe.masks.exponential import decay
from vit_rpe.masks.toeplitz import fast_size


def test_toeplitz_reads_query_minus_key():
    offsets = torch.arange(5 * 3.0).reshape(5, 3)
    dense = Toeplitz(offsets, (3, 2)).dense()
    query, key = 2 * 2 + 0, 0 * 2 + 1  # (2, 0) looks at (0, 1): offsets (2, -1)
    assert dense[query, key] == offsets[2 + 2, -1 + 1]
    assert dense[key, query] == offsets[-2 + 2, 1 + 1]


def test_toeplitz_is_block_toeplitz():
    dense = toeplitz(3, 4).dense().unflatten(-1, (3, 4)).unflatten(-3, (3, 4))
    torch.testing.assert_close(dense[:, 1:, :, 1:, :], dense[:, :-1, :, :-1, :])
    torch.testing.assert_close(dense[:, :, 1:, :, 1:], dense[:, :, :-1, :, :-1])


@given(grid=st.lists(st.integers(1, 5), min_size=1, max_size=3), heads=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_grid_masks_on_any_grid(grid, heads):
    axes = [a for a in range(len(grid)) if a % 2 == 0]
    rates, weights = rand(heads, 2, len(grid)), randn(heads, 2)
    mask = Exponential(rates, weights, grid, one_sided=axes)
    x = randn(2, heads, mask.length, 3)
    torch.testing.assert_close(mask.matmul(x), mask.dense() @ x)
    table = mask.toeplitz()
    torch.testing.assert_close(table.dense(), mask.dense())
    torch.testing.assert_close(table.matmul(x), mask.dense() @ x)
    middle = mask.length // 2
    torch.testing.assert_close(mask.rows(middle, middle + 1), mask.dense()[:, middle : middle + 1])


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("n", [127, 128, 129, 300, 20_000])
def test_decay_of_long_axes(n, one_sided):
    rate = torch.tensor([0.0, 1e-3, 0.5, 40.0], dtype=torch.float64)
    x = randn(4, n, 1)
    result = decay(x, rate, one_sided)
    for i in [0, 1, n // 2, n - 2, n - 1]:
        offset = i - torch.arange(n)
        kernel = (-rate[:, None] * offset.abs()).exp() * ((offset >= 0) if one_sided else 1.0)
        torch.testing.assert_close(result[:, i, 0], (kernel * x[..., 0]).sum(-1))


def test_exponential_of_a_long_axis_is_linear_in_memory_and_has_gradients():
    mask = Exponential(torch.tensor([0.01], requires_grad=True), torch.ones(1), (50_000,))
    out = mask.matmul(torch.ones(50_000, 1))
    (grad,) = torch.autograd.grad(out.sum(), mask.rates)
    assert torch.isfinite(out).all() and torch.isfinite(grad).all() and grad.sum() < 0


def test_wide_tables_take_float64():
    place = torch.linspace(-10, 10, 27)
    ramp = (place[:, None] / 2 + place / 2).exp()
    mask = Toeplitz(ramp, (14, 14))
    x = torch.rand(196, 3) + 0.1
    expected = mask.dense().double() @ x.double()
    torch.testing.assert_close(mask.matmul(x).double(), expected, rtol=1e-5, atol=0)
    assert mask.compute_dtype(torch.float32) == torch.float64


def test_tables_that_peak_at_the_centre_stay_in_float32():
    distance = torch.arange(-13, 14).abs()
    table = torch.exp(-1.5 * (distance[:, None] + distance))
    assert Toeplitz(table, (14, 14)).compute_dtype(torch.float32) == torch.float32


def test_packing_takes_any_ids():
    segments = torch.tensor([7, -1, 7, 10**12, -1])
    mask = Packing(segments)
    torch.testing.assert_close(mask.dense(), (segments[:, None] == segments).float())


def test_hidden_keys_may_be_nan():
    x = torch.randn(4, 2)
    x[1] = torch.nan
    keep = torch.tensor([True, False, True, True])
    for mask in [Padding(keep), Scaled(Ones(4), right=keep), Scaled(Causal(4), right=keep.float())]:
        assert torch.isfinite(mask.matmul(x)).all()


def test_blocks_cost_no_more_than_their_parts():
    blocks = [toeplitz(n, n + 3) for n in (20, 24, 28, 32)]
    mask = BlockDiagonal(blocks)
    x = randn(3, mask.length, 32)
    parts = x.split(mask.lengths, -2)

    def seconds(run) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    together, apart = [], []
    for _ in range(25):  # the fastest of many: other work on the machine must not decide
        together.append(seconds(lambda: mask.matmul(x)))
        apart.append(seconds(lambda: [m.matmul(p) for m, p in zip(blocks, parts, strict=True)]))
    assert min(together) < 1.2 * min(apart)


def test_fast_sizes():
    for n in range(1, 600):
        size = fast_size(n)
        assert n <= size < 1.2 * n + 2
        rest = size
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
        assert rest == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Toeplitz(torch.ones(3, 7, 7), (4, 5)), r"\(4, 5\) grid.*\(7, 9\).*\(3, 7, 7\)"),
        (lambda: Toeplitz(torch.ones(7), ()), "one or more sides"),
        (lambda: Toeplitz(torch.ones(7, 1), (4, 0)), "at least 1 token"),
        (lambda: Ones(0), "at least one token"),
        (lambda: Causal(-2), "-2"),
        (lambda: Padding(torch.ones(3)), "boolean keep"),
        (lambda: Packing(torch.ones(3)), "integer segment ids"),
        (lambda: Packing(torch.ones(3, dtype=torch.bool)), "integer segment ids"),
        (lambda: Dense(torch.ones(3, 4)), r"\(3, 4\)"),
        (lambda: Sparse(torch.zeros(3, 2, dtype=torch.int64), torch.ones(2), 4), r"\(2, E\)"),
        (lambda: Sparse(torch.zeros(2, 2, dtype=torch.int64), torch.ones(3), 4), "2 edges"),
        (lambda: LowRank(torch.ones(3, 2), torch.ones(4, 2)), r"\(3, 2\) and \(4, 2\)"),
        (lambda: LowRank(torch.ones(3, 2).to_sparse_csc(), torch.ones(3, 2)), "COO or CSR"),
        (lambda: Exponential(torch.ones(3, 2), torch.ones(2), (4, 5)), "rates"),
        (lambda: Exponential(torch.ones(2, 3), torch.ones(2), (4, 5)), r"\(2, 2\)"),
        (lambda: Exponential(torch.ones(1), torch.ones(1), (4,), one_sided=(1,)), "no axes"),
        (lambda: Bordered(Ones(3), -1), "-1"),
        (lambda: Bordered(Ones(3), 2, row=torch.ones(3)), "row"),
        (lambda: Bordered(Ones(3), 2, corner=torch.ones(2)), "corner"),
        (lambda: Sum([Ones(3), Ones(4)]), r"\[3, 4\]"),
        (lambda: Sum([]), "one or more"),
        (lambda: Scaled(Ones(3), left=torch.ones(4)), "left"),
        (lambda: BlockDiagonal([]), "at least one token"),
    ],
)
def test_wrong_shapes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_one_sided_axes_are_structural_zeros():
    dense = exponential(3, 4, one_sided=(0,)).dense().unflatten(-1, (3, 4)).unflatten(-3, (3, 4))
    assert (dense[:, 0, :, 1:] == 0).all() and (dense[:, 2] > 0).all()
