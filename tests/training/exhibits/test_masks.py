import pytest
import torch

from vit_rpe.masks import Toeplitz
from vit_rpe.rpe import CausalRPE, DistanceRPE, ExponentialRPE, FactorizedRPE, OffsetRPE
from vit_rpe.training.exhibits.masks import as_bytes, from_bytes, picture, shown_epochs

GRIDS = [(5,), (3, 4), (2, 4, 3)]
KINDS = {
    "offset": (OffsetRPE, {}),
    "distance": (DistanceRPE, {}),
    "exponential": (ExponentialRPE, {"terms": 2}),
    "one-sided": (OffsetRPE, {"one_sided": (0,)}),
    "causal": (CausalRPE, {"one_sided": (0,)}),
    "abs": (OffsetRPE, {"positive": "abs"}),
    "factorized": (FactorizedRPE, {}),
}


CASES = [(kind, grid) for kind in KINDS for grid in GRIDS if kind != "factorized" or len(grid) > 1]


@pytest.mark.parametrize(("kind", "grid"), CASES)
def test_an_offset_table_is_the_mask(kind, grid):
    make, options = KINDS[kind]
    rpe = make(grid, 3, init="decay", **options)
    with torch.no_grad():
        for parameter in rpe.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    table = rpe.offset_table()
    assert table.shape == (3, *(2 * n - 1 for n in grid))
    torch.testing.assert_close(Toeplitz(table, grid).dense(), rpe().dense().expand(3, -1, -1))


def test_bytes_keep_weights_of_a_wide_range():
    table = torch.randn(4, 5, 7).mul(3).exp()
    table[1, 2, 3] = 0.0
    codes, ranges = as_bytes(table)
    assert codes.dtype == torch.uint8 and (codes == 0).sum() == 1
    kept = from_bytes(codes, ranges)
    assert kept[1, 2, 3] == 0
    seen = table > 0
    span = (ranges[:, 1] - ranges[:, 0]).max()
    error = (kept[seen].log() - table[seen].log()).abs().max()
    assert error <= 0.51 * span / 254


def test_bytes_of_odd_tables():
    flat = torch.ones(2, 3, 3)
    codes, ranges = as_bytes(flat)
    assert (ranges == 0).all() and (from_bytes(codes, ranges) == 1).all()
    nothing, wrong = torch.zeros(1, 3), torch.tensor([[torch.nan, -1.0, torch.inf]])
    assert (from_bytes(*as_bytes(nothing)) == 0).all()
    assert from_bytes(*as_bytes(wrong))[0, :2].tolist() == [0, 0]


def test_epochs_that_are_shown():
    assert shown_epochs(3, 12) == [0, 1, 2, 3]
    for epochs in range(1, 400):
        shown = shown_epochs(epochs, 12)
        assert shown[0] == 0 and shown[-1] == epochs and len(shown) <= 12


@pytest.mark.parametrize("sides", [(9,), (5, 7), (3, 5, 7)])
def test_a_picture_has_all_heads_and_dark_is_large(sides):
    table = torch.full((2, *sides), 0.1)
    table[0].view(-1)[0] = 1.0
    drawn = picture(table)
    assert drawn.dtype == torch.uint8 and drawn.shape[0] == 1
    assert drawn.min() == 0 and drawn[0, 2, 2] == 0
