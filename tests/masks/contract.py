"""What every mask must do. A new mask says only how to make one:

    class TestMine(MaskContract):
        def make(self) -> Mask:
            return Mine(torch.rand(3, 7, 9, dtype=torch.float64), grid=(4, 5))

Make it in float64, with unequal sides and no symmetry, so that a flipped sign or a swapped axis
cannot pass. Its leading dims must broadcast against (2 samples, 3 heads).
"""

import pytest
import torch

from tests.zoo import BATCH, HEADS, float_tensors, own_tensors, randn, with_tensors
from vit_rpe.masks import Mask


class MaskContract:
    def make(self) -> Mask:
        raise NotImplementedError("a contract test says how to make its mask")

    def test_matmul_is_the_dense_product(self):
        mask = self.make()
        for lead in [(), (HEADS,), (BATCH, HEADS)]:
            x = randn(*lead, mask.length, 5)
            expected = mask.dense().double() @ x
            torch.testing.assert_close(mask.matmul(x).expand(expected.shape), expected)

    def test_one_column_and_strided_columns(self):
        mask = self.make()
        x = randn(BATCH, HEADS, 3, mask.length).mT[..., 1:2]
        expected = mask.dense().double() @ x
        torch.testing.assert_close(mask.matmul(x).expand(expected.shape), expected)

    def test_rows_are_slices_of_dense(self):
        mask = self.make()
        dense = mask.dense().double()
        for start in range(mask.length):
            for stop in {start + 1, (start + mask.length + 1) // 2, mask.length}:
                if stop > start:
                    expected = dense[..., start:stop, :]
                    slab = mask.rows(start, stop).double()
                    torch.testing.assert_close(slab.expand_as(expected), expected)

    def test_gradients_of_the_product(self):
        mask = self.make()
        x = randn(BATCH, HEADS, mask.length, 2).requires_grad_()
        tensors = own_tensors(mask)
        torch.autograd.gradcheck(lambda x, *t: with_tensors(mask, t).matmul(x), (x, *tensors))

    def test_gradients_of_rows(self):
        mask = self.make()
        tensors = own_tensors(mask)
        start, stop = mask.length // 3, mask.length
        if tensors:
            torch.autograd.gradcheck(lambda *t: with_tensors(mask, t).rows(start, stop), tensors)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_lower_precision_columns(self, dtype):
        mask = self.make()
        x = randn(BATCH, HEADS, mask.length, 4).to(dtype)
        result = mask.matmul(x)
        assert result.dtype == dtype
        dense = mask.dense().double()
        error = (result.double() - dense @ x.double()).abs()
        scale = dense.abs().amax() * x.double().abs().sum(-2, keepdim=True)
        assert (error <= 4 * torch.finfo(dtype).eps * scale).all()

    def test_float32_mask(self):
        mask = self.make()
        dense = mask.dense().double()
        mask = with_tensors(mask, tuple(t.detach().float() for t in own_tensors(mask)))
        x = randn(BATCH, HEADS, mask.length, 4)
        expected = (dense @ x).float()
        torch.testing.assert_close(
            mask.matmul(x.float()).expand(expected.shape), expected, rtol=1e-4, atol=1e-5
        )

    def test_round_off_stays_within_the_magnitude(self):
        """Attention tells an empty row from a small one by `abs_bound`: too small a bound, and
        round-off counts as weight; |M| itself is too small for products that mix all tokens."""
        mask = self.make()
        wide = tuple((t.detach().abs() ** 4 * t.detach().sign()).float() for t in own_tensors(mask))
        exact = with_tensors(mask, tuple(t.double() for t in wide)).dense().double()
        mask = with_tensors(mask, wide)
        x = torch.diag_embed(torch.randn(BATCH, HEADS, mask.length))  # one token in each column
        error = (mask.matmul(x).double() - exact @ x.double()).abs()
        scale = mask.precomputed(x.dtype).abs_bound().matmul(x.abs()).double()
        precision = torch.finfo(x.dtype)
        allowed = 16 * precision.eps * self.amplification(exact) * scale
        assert (error <= allowed + precision.tiny * x.abs().max()).all()

    def amplification(self, exact: torch.Tensor) -> float:
        """By how much the entries amplify the round-off of what they are computed from."""
        return 1.0

    def test_magnitude_bounds_the_entries(self):
        mask = self.make()
        bound = mask.abs_bound().dense().double()
        assert (mask.dense().double().abs() <= bound * (1 + 1e-12)).all()

    def test_cost_grows_with_columns(self):
        mask = self.make()
        assert 0 < mask.cost(3) < mask.cost(30)

    def test_check_accepts_and_refuses(self):
        mask = self.make()
        mask.check()
        for owner, name in float_tensors(mask):
            good = getattr(owner, name)
            bad = good.detach().clone()
            bad.view(-1)[-1] = torch.nan
            setattr(owner, name, bad)
            with pytest.raises(ValueError, match=name):
                mask.check()
            setattr(owner, name, good)

    def test_wrong_length_is_refused(self):
        mask = self.make()
        with pytest.raises(ValueError, match=str(mask.length)):
            mask.matmul(randn(mask.length + 1, 2))
        for start, stop in [(0, mask.length + 1), (1, 1), (-1, 1)]:
            with pytest.raises(ValueError, match="rows"):
                mask.rows(start, stop)

    def test_repr_names_the_length(self):
        mask = self.make()
        assert f"length={mask.length}" in repr(mask)
