import pytest
import torch

from vit_rpe.features import HyperbolicRandomFeatures, PositiveRandomFeatures

DIM = 8


@pytest.mark.parametrize("kind", [PositiveRandomFeatures, HyperbolicRandomFeatures])
class TestRandomFeatures:
    def estimates(self, kind, m: int, draws: int, unit_norm=False) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        q, k = (torch.randn(1, DIM, generator=generator).double() for _ in range(2))
        features = kind(DIM, m, unit_norm=unit_norm, stabilize=False).double()
        results = []
        for _ in range(draws):
            features.redraw(generator)
            phi_q, phi_k = features(q, k)
            results.append((phi_q * phi_k).sum())
        if unit_norm:
            exact = (q / q.norm() * k / k.norm()).sum().exp()
        else:
            exact = ((q * k).sum() / DIM**0.5).exp()
        return torch.stack(results), exact

    @pytest.mark.parametrize("unit_norm", [False, True])
    @pytest.mark.parametrize("m", [2, 8, 24])
    def test_estimate_is_unbiased(self, kind, m, unit_norm):
        estimates, exact = self.estimates(kind, m, 4000, unit_norm)
        standard_error = estimates.std() / 4000**0.5
        assert (estimates.mean() - exact).abs() < 4 * standard_error
        assert standard_error < 0.1 * exact

    def test_variance_falls_as_one_over_m(self, kind):
        few, _ = self.estimates(kind, 2 * DIM, 3000)
        many, _ = self.estimates(kind, 16 * DIM, 3000)
        assert 5 < few.var() / many.var() < 12  # 8, give or take the noise of two variances

    def test_features_are_positive_and_bounded(self, kind):
        q, k = 30 * torch.randn(2, 3, 7, DIM), 30 * torch.randn(2, 3, 7, DIM)
        for phi in kind(DIM, 16)(q, k):
            assert phi.isfinite().all() and (phi >= 0).all() and phi.max() <= 1

    def test_stabiliser_leaves_attention_alone(self, kind):
        features = kind(DIM, 16)
        q, k = torch.randn(2, 5, DIM), torch.randn(2, 5, DIM)
        stable = torch.matmul(*(x if i == 0 else x.mT for i, x in enumerate(features(q, k))))
        features.stabilize = False
        plain = torch.matmul(*(x if i == 0 else x.mT for i, x in enumerate(features(q, k))))
        torch.testing.assert_close(
            stable / stable.sum(-1, keepdim=True), plain / plain.sum(-1, keepdim=True)
        )

    def test_hidden_keys_do_not_move_the_stabiliser(self, kind):
        features = kind(DIM, 16)
        k = torch.randn(1, 6, DIM)
        keep = torch.arange(6)[None] < 4
        _, alone = features(k[:, :4], k[:, :4])
        for filler in (1e4, torch.nan):
            _, phi = features(k, k.masked_fill(~keep[..., None], filler), keep)
            torch.testing.assert_close(phi[:, :4], alone)
            assert (phi[:, 4:] == 0).all()

    def test_projection_is_saved_and_redrawn_only_on_request(self, kind):
        first, second = kind(DIM, 16), kind(DIM, 16)
        assert not torch.equal(first.projection, second.projection)
        second.load_state_dict(first.state_dict())
        assert torch.equal(first.projection, second.projection)
        x = torch.randn(3, DIM)
        assert torch.equal(first.eval()(x, x)[0], first.train()(x, x)[0])
        first.redraw()
        assert not torch.equal(first.projection, second.projection)

    def test_half_precision_goes_through_float32(self, kind):
        q = 20 * torch.randn(2, 5, DIM)
        with torch.autocast("cpu", torch.bfloat16):
            phi, _ = kind(DIM, 16)(q.bfloat16(), q.bfloat16())
        assert phi.dtype == torch.float32 and phi.isfinite().all()

    def test_gradients(self, kind):
        features = kind(DIM, 6).double()
        q, k = (torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True) for _ in range(2))

        def normalised(q, k):
            phi_q, phi_k = features(q, k)
            weights = phi_q @ phi_k.mT
            return weights / weights.sum(-1, keepdim=True)

        torch.autograd.gradcheck(normalised, (q, k))

    def test_meta_device_then_reset(self, kind):
        features = kind(DIM, 16, device="meta").to_empty(device="cpu")
        features.reset_parameters()
        assert 0.5 < features.projection.std() < 1.5


def test_number_of_features_is_checked():
    with pytest.raises(ValueError, match="even number"):
        HyperbolicRandomFeatures(DIM, 7)
    with pytest.raises(ValueError, match="at least 1"):
        PositiveRandomFeatures(DIM, 0)


@pytest.mark.parametrize("kind", [PositiveRandomFeatures, HyperbolicRandomFeatures])
def test_random_features_run_on_the_meta_device(kind):
    x = torch.ones(2, 5, DIM, device="meta")
    q, k = kind(DIM, 12, device="meta")(x, x)
    assert q.shape == k.shape == (2, 5, 12)
