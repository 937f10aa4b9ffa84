"""What the page computes from packed features, against `attention_rows`; all kinds of models."""

import pytest
import torch

from tests.report.subjects import MODELS, make_model
from vit_rpe.attention import attention_rows
from vit_rpe.report.explorer import TOLERANCE, _kept, _mask, _seen
from vit_rpe.report.packing import PackedRows, page_rows
from vit_rpe.training import offset_tables


@pytest.mark.parametrize("precision", ["half", "byte"])
@pytest.mark.parametrize("kind", MODELS)
def test_rows_of_the_page_are_those_of_the_model(kind, precision):
    model = make_model(kind)
    shape = (1, 3, 4, 12, 20) if "video" in kind else (1, 3, 12, 20)
    seen, _ = _seen(model, torch.randn(shape))
    assert len(seen) == 2
    tables = offset_tables(model)
    for one in seen:
        mask = _mask(model, one, tables.get(one.name), heads=2)
        q, k = (PackedRows.of(x, precision) for x in _kept(one, 2))
        length = one.q.shape[1]
        tokens = list(range(length))
        rows = page_rows(q, k, mask, one.kernel, tokens)
        exact = attention_rows(one.q.double(), one.k.double(), one.mask, tokens, one.kernel)
        assert rows.shape == exact.shape == (2, length, length)
        error = (rows - exact).abs().max()
        assert error <= (2e-3 if precision == "half" else 2 * TOLERANCE), error


def test_features_are_packed_by_rows_of_a_wide_range():
    x = torch.rand(2, 5, 7) * torch.logspace(-20, 3, 5)[:, None]
    for precision, error in (("half", 6e-4), ("byte", 2.1e-3)):
        packed = PackedRows.of(x, precision)
        unit = (packed.unpack() - x).abs() / x.amax(-1, keepdim=True)
        assert unit.max() <= error
    assert PackedRows.of(x - 1, "byte").signed
    assert (PackedRows.of(torch.zeros(1, 2, 3), "byte").unpack() == 0).all()
