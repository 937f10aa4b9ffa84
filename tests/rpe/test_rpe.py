import pytest
import torch

from vit_rpe.masks import Exponential, Toeplitz
from vit_rpe.rpe import (
    CausalRPE,
    DistanceRPE,
    ExponentialRPE,
    FactorizedRPE,
    GridRPE,
    OffsetRPE,
)
from vit_rpe.rpe.resize import resample

GRID, HEADS = (4, 6), 3
KINDS = {
    "offset": OffsetRPE,
    "distance": DistanceRPE,
    "factorized": FactorizedRPE,
    "exponential": ExponentialRPE,
    "exponential_terms": lambda *a, **k: ExponentialRPE(*a, terms=3, **k),
}


def make(kind: str, grid=GRID, **options) -> GridRPE:
    return KINDS[kind](grid, HEADS, **options)


def distance(grid: tuple[int, ...]) -> torch.Tensor:
    place = torch.cartesian_prod(*(torch.arange(n) for n in grid)).reshape(-1, len(grid))
    return (place[:, None] - place).abs().sum(-1)


def scramble(rpe: GridRPE, scale: float = 0.3) -> GridRPE:
    with torch.no_grad():
        for p in rpe.parameters():
            p.add_(scale * torch.randn_like(p))
    return rpe


@pytest.mark.parametrize("positive", ["exp", "abs"])
@pytest.mark.parametrize("gain", [1.0, 5.0])
@pytest.mark.parametrize("kind", KINDS)
class TestStart:
    def test_ones(self, kind, gain, positive):
        dense = make(kind, gain=gain, positive=positive)().dense()
        torch.testing.assert_close(dense, torch.ones(HEADS, 24, 24), rtol=0, atol=3e-4)

    def test_decay_runs_from_global_to_local(self, kind, gain, positive):
        dense = make(kind, gain=gain, positive=positive, init="decay")().dense()
        torch.testing.assert_close(dense[0], torch.ones(24, 24), rtol=0, atol=3e-4)
        for head in (1, 2):
            slope = -dense[head, 0, 1].log()
            expected = torch.exp(-slope * distance(GRID))
            torch.testing.assert_close(dense[head], expected, rtol=1e-2, atol=3e-4)
        assert dense[2, 0, 1] < dense[1, 0, 1] < 1

    def test_reset(self, kind, gain, positive):
        rpe = make(kind, gain=gain, positive=positive, init="decay")
        before = rpe().dense()
        scramble(rpe).reset_parameters()
        torch.testing.assert_close(rpe().dense(), before)

    def test_every_parameter_gets_a_gradient(self, kind, gain, positive):
        rpe = make(kind, gain=gain, positive=positive)
        (rpe().dense() * torch.rand(HEADS, 24, 24)).sum().backward()
        assert all(p.grad is not None and (p.grad != 0).any() for p in rpe.parameters())


@pytest.mark.parametrize("grid", [(9,), (3, 4), (2, 3, 4), (1, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_one_sided_axes_hide_later_keys(kind, grid):
    if kind == "factorized" and len(grid) == 1:
        pytest.skip("one axis has no factors")
    axes = (len(grid) - 1,)
    dense = scramble(make(kind, grid, one_sided=axes))().dense()
    last = torch.cartesian_prod(*(torch.arange(n) for n in grid)).reshape(-1, len(grid))[:, -1]
    later = last[:, None] < last
    assert (dense[:, later] == 0).all() and (dense[:, ~later] > 0).all()


@pytest.mark.parametrize("kind", ["offset", "distance"])
def test_gain_multiplies_the_learning_rate_of_the_logarithm(kind):
    for gain in (1.0, 5.0):
        rpe = make(kind, gain=gain)
        with torch.no_grad():
            for p in rpe.parameters():
                p.fill_(0.2)
        torch.testing.assert_close(rpe().dense().log(), torch.full((HEADS, 24, 24), 0.2 * gain))


def test_one_sided_rpe_is_ones_without_parameters():
    rpe = CausalRPE((3, 4), HEADS, one_sided=(0,))
    later = torch.arange(3).repeat_interleave(4)
    expected = (later[:, None] >= later).float().expand(HEADS, -1, -1)
    torch.testing.assert_close(rpe().dense(), expected)
    assert not rpe.state_dict() and not list(rpe.parameters())
    assert rpe((2, 5)).length == 10
    rpe.resize((5, 2))
    assert rpe().grid == (5, 2)
    assert rpe.to(torch.float64)().dense().dtype == torch.float64


def test_distance_rpe_reads_the_l1_distance():
    rpe = scramble(make("distance"))
    expected = rpe.table.exp()[:, distance(GRID)]
    torch.testing.assert_close(rpe().dense(), expected)


def test_kinds_of_mask():
    assert isinstance(make("offset")(), Toeplitz) and isinstance(make("distance")(), Toeplitz)
    assert isinstance(make("exponential")(), Exponential)


def test_terms_start_apart_and_rates_can_leave_zero():
    rpe = ExponentialRPE(GRID, HEADS, terms=3)
    assert rpe().rates[0].unique(dim=0).shape[0] == 3
    single = ExponentialRPE(GRID, HEADS)
    local = torch.exp(-distance(GRID).float())
    optimizer = torch.optim.Adam(single.parameters(), 0.05)
    for _ in range(200):
        loss = (single().dense() - local).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 5e-3  # from about 0.9


def test_rates_never_grow_without_bound():
    rpe = ExponentialRPE((30, 40), HEADS)
    with torch.no_grad():
        rpe.rate.fill_(-100.0)
    dense = rpe().toeplitz().offsets
    assert dense.max() <= torch.e**2 + 1e-3  # e for each of the two axes
    dense.sum().backward()
    assert rpe.rate.grad is not None and rpe.rate.grad.isfinite().all()


class TestResize:
    @pytest.mark.parametrize("kind", KINDS)
    def test_own_size_changes_nothing(self, kind):
        rpe = scramble(make(kind))
        before = {name: p for name, p in rpe.named_parameters()}
        rpe.resize(GRID)
        assert all(p is before[name] for name, p in rpe.named_parameters())
        torch.testing.assert_close(rpe(GRID).dense(), rpe().dense(), rtol=0, atol=0)

    @pytest.mark.parametrize("init", ["ones", "decay"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_smooth_masks_come_back(self, kind, init):
        rpe = make(kind, (7, 9), init=init)
        if kind == "offset":
            y, x = torch.linspace(-1, 1, 13)[:, None], torch.linspace(-1, 1, 17)
            with torch.no_grad():
                rpe.table += torch.sin(2 * y) * torch.cos(2 * x + 0.5)
        before = rpe().dense()
        rpe.resize((12, 20))
        assert rpe.grid == (12, 20) and rpe().length == 240
        rpe.resize((7, 9))
        torch.testing.assert_close(rpe().dense(), before, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("kind", KINDS)
    def test_function_is_kept(self, kind):
        rpe = make(kind, (8, 8), init="decay")
        small = rpe().dense()[:, 0].unflatten(-1, (8, 8))
        large = rpe((15, 15)).dense()[:, 0].unflatten(-1, (15, 15))
        torch.testing.assert_close(large[:, ::2, ::2], small, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("kind", KINDS)
    def test_call_with_another_grid_equals_resize_and_writes_nothing(self, kind):
        rpe = scramble(make(kind, one_sided=(0,)))
        state = {name: p.clone() for name, p in rpe.state_dict().items()}
        mask = rpe((5, 3))
        assert rpe.grid == GRID
        for name, p in rpe.state_dict().items():
            assert torch.equal(p, state[name])
        rpe.resize((5, 3))
        torch.testing.assert_close(rpe().dense(), mask.dense())
        assert (rpe().dense().unflatten(-1, (5, 3))[:, 0, 1:] == 0).all()

    @pytest.mark.parametrize("kind", KINDS)
    def test_axes_of_one_token(self, kind):
        rpe = scramble(make(kind, (1, 6)))
        assert rpe((4, 6)).dense().isfinite().all()
        assert make(kind, (4, 6))((1, 1)).dense().shape == (HEADS, 1, 1)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_shorter_axis_of_fixed_step_is_cropped(self, kind):
        rpe = scramble(make(kind, (5, 3), crop_axes=(0,), init="decay"))
        expected = rpe().dense()[:, :9, :9]
        torch.testing.assert_close(rpe((3, 3)).dense(), expected)
        rpe.resize((3, 3))
        torch.testing.assert_close(rpe().dense(), expected)

    def test_frozen_parameters_stay_frozen(self):
        rpe = make("offset").requires_grad_(False)
        rpe.resize((5, 5))
        assert not rpe.table.requires_grad

    def test_resample_is_exact_for_cubics(self):
        x = torch.linspace(-1, 1, 9, dtype=torch.float64)
        y = torch.linspace(-1, 1, 24, dtype=torch.float64)
        torch.testing.assert_close(resample(x**3 - x + 2, 24), y**3 - y + 2)

    def test_another_number_of_axes_is_refused(self):
        with pytest.raises(ValueError, match="2 axes"):
            make("offset").resize((3, 4, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_meta_device_then_reset(kind):
    expected = make(kind, init="decay")().dense()
    rpe = make(kind, init="decay", device="meta").to_empty(device="cpu")
    rpe.reset_parameters()
    torch.testing.assert_close(rpe().dense(), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "zeros"}, "'ones' or 'decay'"),
        ({"positive": "relu"}, "'exp' or 'abs'"),
        ({"gain": 0.0}, "gain above 0"),
        ({"one_sided": (2,)}, "no axes"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make("offset", **options)
    with pytest.raises(ValueError, match="at least 1 term"):
        ExponentialRPE(GRID, HEADS, terms=0)
