"""Interpreted, the fused kernels are the definition: values, gradients, low precision."""

import pytest
import torch

from tests.attention.gpu.comparing import Case, attend, defined, errors, forms, fused, promised
from tests.zoo import ZOO, keep, rand, randn
from vit_rpe.features import ELUFeatures, PositiveRandomFeatures, ReLUFeatures, SquareFeatures
from vit_rpe.masks import Bordered, Exponential, Mask, Scaled, Toeplitz

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")

GRID_MASKS = [
    *(name for name in ZOO if name.startswith(("toeplitz", "exponential"))),
    *("bordered", "bordered_ones", "bordered_nothing", "scaled", "scaled_keep"),
]
SOFTMAX_MASKS = [
    *("toeplitz_1d", "toeplitz_3d", "toeplitz_one_token", "toeplitz_2d_per_sample"),
    *("exponential_2d_causal", "bordered", "bordered_ones", "scaled", "scaled_keep"),
]


def class_token() -> Mask:
    return Bordered(Toeplitz(rand(3, 7, 9), (4, 5)), 1, rand(3, 1), rand(3, 1), rand(3, 1, 1))


def learned_border(*grid: int, prefix: int = 2) -> Mask:
    table = Toeplitz(rand(3, *(2 * n - 1 for n in grid)), grid)
    weights = (rand(3, prefix), rand(prefix), rand(3, prefix, prefix))
    return Bordered(table, prefix, *weights)


@pytest.mark.parametrize("name", GRID_MASKS)
def test_masks_on_a_grid(name):
    case = Case(ZOO[name], m=5, d=7, features=ReLUFeatures())
    found = errors(fused(case), defined(case))
    assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize("name", SOFTMAX_MASKS)
def test_logarithms_of_masks_on_a_grid(name):
    case = Case(ZOO[name], m=5, d=7, softmax=True)
    found = errors(fused(case), defined(case))
    assert max(found.values()) <= 1e-5, found


SIZES = {
    "63 tokens": Case(lambda: promised(Toeplitz(rand(2, 13, 17), (7, 9))), (1, 2), 20, 12),
    "100 tokens": Case(lambda: Toeplitz(rand(1, 19, 19), (10, 10)), (1, 1), 16, 33),
    "one table": Case(lambda: Toeplitz(rand(7, 9), (4, 5)), (3, 2), 16, 16),
    "one head": Case(lambda: Toeplitz(rand(7, 9), (4, 5)), (3,), 1, 2),
    "table per sample": Case(lambda: Toeplitz(rand(2, 3, 7, 9), (4, 5)), (2, 3), 3, 16),
    "five dims": Case(lambda: Toeplitz(rand(2, 1, 7, 9), (4, 5)), (2, 2, 2), 3, 5),
    "learned border": Case(lambda: learned_border(4, 5), (2, 3), 8, 8),
    "more prefix tokens than cells": Case(lambda: learned_border(2, prefix=7), (2, 3), 8, 8),
    "wide heads": Case(lambda: Toeplitz(rand(2, 5, 7), (3, 4)), (1, 2), 128, 100),
    "softmax, 63 tokens": Case(
        lambda: Toeplitz(rand(2, 13, 17), (7, 9)), (1, 2), 20, 12, softmax=True
    ),
    "softmax, 100 tokens, one table": Case(
        lambda: Toeplitz(rand(19, 19), (10, 10)), (1, 2), 16, 33, softmax=True
    ),
    "softmax, learned border": Case(lambda: learned_border(4, 5), (2, 3), 8, 8, softmax=True),
    "softmax, wide heads": Case(
        lambda: Toeplitz(rand(2, 5, 7), (3, 4)), (1, 2), 100, 128, softmax=True
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    case = SIZES[name]
    case.features = None if case.softmax else ReLUFeatures()
    found = errors(fused(case), defined(case))
    assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize("features", [ReLUFeatures, ELUFeatures, SquareFeatures])
def test_feature_maps_and_floor(features):
    case = Case(class_token, m=6, features=features(), floor=0.7)
    found = errors(fused(case), defined(case))
    assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize("features", [ReLUFeatures(unit_norm=True), PositiveRandomFeatures(8, 16)])
def test_other_maps_are_applied_before(features):
    case = Case(class_token, features=features)
    found = errors(fused(case), defined(case))
    assert max(found.values()) <= 1e-5, found


def test_a_hook_sees_the_features():
    features, seen = ReLUFeatures(), []
    features.register_forward_hook(lambda *args: seen.append(args[-1]))
    fused(Case(class_token, features=features))
    assert len(seen) == 1


def test_signed_masks_and_features():
    signed = lambda: Bordered(Toeplitz(randn(3, 7, 9), (4, 5)), 2, randn(3, 2), randn(3, 2))  # noqa: E731
    found = errors(fused(Case(signed)), defined(Case(signed)))
    assert max(found.values()) <= 1e-4, found


def wide(q, k, v):
    scale = torch.logspace(-6, 6, q.shape[-2])[:, None]
    q *= scale
    k *= scale.flip(0)


def test_features_of_wide_range():
    """Each row, not only the tensor, has its digits."""
    case = Case(class_token, features=ReLUFeatures(), change=wide)
    found, expected = fused(case), defined(case)
    difference = (found["out"] - expected["out"]).norm(dim=-1)
    assert (difference <= 1e-5 * expected["out"].norm(dim=-1)).all()
    assert max(errors(found, expected).values()) <= 1e-5


def empty_rows(q, k, v):
    q[0, 1, 3] = -1.0
    q[:, :, 0] = -1.0


def test_empty_rows_give_zeros_and_learn_nothing():
    case = Case(lambda: promised(class_token()), features=ReLUFeatures(), change=empty_rows)
    found = fused(case)
    assert (found["out"][0, 1, 3] == 0).all() and (found["out"][:, :, 0] == 0).all()
    assert (found["dq"][0, 1, 3] == 0).all()
    assert max(errors(found, defined(case)).values()) <= 1e-5


def test_rows_that_sum_to_nothing_are_empty():
    """Positive and negative weights that cancel but for round-off, as in the definition."""
    table = torch.zeros(1, 7)
    table[0, 3], table[0, 2] = 1.0, -1.0  # own key, and the one after it
    case = Case(lambda: Toeplitz(table.double(), (4,)), (1, 1), change=lambda q, k, v: k.fill_(1.0))
    found = fused(case)
    assert (found["out"][0, 0, :3] == 0).all() and (found["out"][0, 0, 3] != 0).all()


def far_below_zero(q, k, v):
    q.fill_(8.0)
    k.mul_(0.1).sub_(32.0)


def test_keys_that_are_not_there_have_no_exponentials():
    """20 tokens in tiles of 32 or 64, whose logits are all near -1000."""
    table = lambda: promised(Toeplitz(rand(3, 7, 9), (4, 5)))  # noqa: E731
    case = Case(table, m=16, softmax=True, change=far_below_zero)
    assert max(errors(fused(case), defined(case)).values()) <= 1e-4


def test_sums_that_overflow_are_not_empty():
    for mask in (promised(class_token()), class_token()):
        tokens = Case(class_token).tensors(21)
        tokens[0][0, 0, 2] = tokens[1][0, 0, 5] = 1e38
        out = attend(Case(class_token, features=ReLUFeatures()), tokens, mask)
        assert out[0, 0, 2].isnan().all() and out[0, 1].isfinite().all()


def test_softmax_that_sees_nothing():
    table = torch.zeros(2, 7, dtype=torch.float64)
    table[:, :3] = 1.0  # later keys only: the last query has none
    hidden = keep(4)
    case = Case(lambda: Scaled(Toeplitz(table, (4,)), right=hidden), (2, 2), softmax=True)
    found = fused(case)
    assert (found["out"][:, :, 3] == 0).all() and (found["dq"][:, :, 3] == 0).all()
    assert max(errors(found, defined(case)).values()) <= 1e-5


def test_hidden_keys_may_be_nan():
    kept = torch.ones(2, 1, 20, dtype=torch.bool)
    kept[0, :, 7] = False

    def spoil(q, k, v):
        k[0, :, 7] = v[0, :, 7] = torch.nan

    for softmax in (False, True):
        mask = lambda: Scaled(Toeplitz(rand(3, 7, 9), (4, 5)), right=kept)  # noqa: E731
        features = None if softmax else ReLUFeatures()
        case = Case(mask, features=features, softmax=softmax, change=spoil)
        assert max(errors(fused(case), defined(case)).values()) <= 1e-5


def test_a_nan_is_not_hidden():
    def spoil(q, k, v):
        q[0, 0, 2, 1] = torch.nan

    for softmax in (False, True):
        features = None if softmax else ReLUFeatures()
        case = Case(class_token, features=features, softmax=softmax, change=spoil)
        tokens = case.tensors(21)
        out = attend(case, tokens, promised(class_token()))
        assert out[0, 0, 2].isnan().all() and out[0, 0, 1].isfinite().all()


LOW = [
    (torch.float16, ReLUFeatures, False, 2),
    (torch.float16, SquareFeatures, False, 2),
    (torch.float16, None, True, 2),
    (torch.bfloat16, ReLUFeatures, False, 3),
    (torch.bfloat16, ELUFeatures, False, 3),
    (torch.bfloat16, None, True, 3),
]


@pytest.mark.parametrize(("dtype", "features", "softmax", "most"), LOW)
def test_low_precision(dtype, features, softmax, most):
    """Against the same written in torch, in the same precision: its error times `most`."""
    features = None if features is None else features()
    case = Case(
        lambda: learned_border(6, 5, prefix=1), (2, 3), 16, 16, features, 0.0, softmax, dtype
    )
    expected = defined(case)
    found, torchs = errors(fused(case), expected), errors(defined(case, dtype), expected)
    worst = {name: (found[name], torchs[name]) for name in found}
    assert all(ours <= most * theirs + 1e-5 for ours, theirs in worst.values()), worst


def test_sums_beyond_float16():
    """Weights of 10^5 and more, which float16 does not have."""

    def large(q, k, v):
        q *= 200
        k *= 200
        assert (q.relu() @ k.relu().mT).max() > 2e5

    case = Case(class_token, (1, 3), 64, 16, ReLUFeatures(), dtype=torch.float16, change=large)
    found, expected = fused(case), defined(case)
    assert max(errors(found, expected).values()) <= 2e-3


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
def test_tables_need_not_be_contiguous(softmax):
    features = None if softmax else ReLUFeatures()
    tables = [rand(3, 14)[:, ::2], rand(7, 3).mT]
    for table in tables:
        case = Case(lambda: Toeplitz(table, (4,)), (2, 3), 4, 4, features)  # noqa: B023
        tokens, mask = case.tensors(4), promised(Toeplitz(table, (4,)))
        case.softmax = softmax
        plain = promised(Toeplitz(table.contiguous(), (4,)))
        assert torch.equal(attend(case, tokens, mask), attend(case, tokens, plain))


def test_what_is_not_served():
    mask = promised(class_token())
    tokens = Case(class_token).tensors(21)
    assert forms(Case(class_token, features=ReLUFeatures()), tokens, mask) == {"gpu"}
    doubles = [x.double() for x in tokens]
    assert forms(Case(class_token, features=ReLUFeatures()), doubles, mask) != {"gpu"}
    wide = [torch.randn(2, 3, 21, 130)] * 3
    assert forms(Case(class_token), wide, mask) != {"gpu"}


@pytest.mark.parametrize("softmax", [False, True], ids=["linear", "softmax"])
def test_runs_repeat_their_bits(softmax):
    features = None if softmax else ReLUFeatures()
    case = Case(lambda: Exponential(rand(3, 2, 2), rand(3, 2), (4, 5)), features=features)
    case.softmax = softmax
    first, second = fused(case), fused(case)
    assert all(torch.equal(first[name], second[name]) for name in first)
