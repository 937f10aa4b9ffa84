"""Stochastic relative positions, and exp of logits of low rank."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.masks.contract import MaskContract
from tests.zoo import BATCH, HEADS, rand, randn
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.reference import masked_attention
from vit_rpe.masks import LowRank, Mask
from vit_rpe.rpe import low_rank_logits, sine_factors, sine_spe, stochastic_factors


def sines() -> tuple[Tensor, Tensor, Tensor]:
    return rand(HEADS, 4), randn(HEADS, 4), rand(HEADS, 4) / 2


MASKS: dict[str, Callable[[], Mask]] = {
    "sine_factors": lambda: LowRank(*sine_factors(7, *sines())),
    "sine_spe": lambda: sine_spe(7, *sines(), realizations=5, num_features=6),
    "low_rank_logits": lambda: low_rank_logits(randn(HEADS, 8, 3) / 2, randn(HEADS, 8, 3) / 2, 12),
}


@pytest.mark.parametrize("name", MASKS)
class TestStochasticMasks(MaskContract):
    @pytest.fixture(autouse=True)
    def choose(self, name: str) -> None:
        self.name = name

    def make(self) -> Mask:
        return MASKS[self.name]()


@pytest.mark.parametrize("path", ["auto", "explicit", "product"])
@pytest.mark.parametrize("name", MASKS)
def test_attention_is_its_definition(name, path):
    mask = MASKS[name]()
    q, k = rand(BATCH, HEADS, mask.length, 4), rand(BATCH, HEADS, mask.length, 4)
    v = randn(BATCH, HEADS, mask.length, 3)
    out = masked_linear_attention(q, k, v, mask, path=path)
    torch.testing.assert_close(out, masked_attention(q, k, v, mask), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("path", ["explicit", "product"])
def test_attention_under_autocast_is_finite(name, path):
    mask = MASKS[name]()
    x = torch.rand(HEADS, mask.length, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(masked_linear_attention(x, x, x, mask, path=path)).all()


def test_sines_of_the_offset():
    frequencies, phases, gains = rand(2, 3), randn(2, 3), randn(2, 3)
    q, k = sine_factors(9, frequencies, phases, gains)
    offset = torch.arange(9)[:, None] - torch.arange(9)
    angle = 2 * torch.pi * frequencies[..., None, None] * offset + phases[..., None, None]
    expected = (gains[..., None, None].square() * angle.cos()).sum(1)
    torch.testing.assert_close(q @ k.mT, expected)
    with pytest.raises(ValueError, match="must have one shape"):
        sine_factors(9, frequencies, phases, gains[:, :2])


def test_stochastic_factors_are_unbiased():
    q, k = sine_factors(6, rand(3), randn(3), rand(3))
    draws = torch.stack(
        [a @ b.mT for a, b in (stochastic_factors(q, k, 50, seed) for seed in range(300))]
    )
    error = (draws.mean(0) - q @ k.mT).abs()
    assert (error <= 5 * draws.std(0) / 300**0.5).all()
    with pytest.raises(ValueError, match="realizations must be at least 1, got 0"):
        stochastic_factors(q, k, 0)


def test_exp_of_low_rank_logits():
    u, v = randn(8, 3) / 2, randn(8, 3) / 2
    exact = (u @ v.mT).exp()
    errors = [
        torch.stack(
            [(low_rank_logits(u, v, m, seed).dense() / exact - 1).square() for seed in range(20)]
        )
        .mean()
        .sqrt()
        for m in (16, 1024)
    ]
    assert errors[1] < 0.1 and errors[1] < errors[0] / 4
    assert (low_rank_logits(u, v, 16).dense() > 0).all()
    with pytest.raises(ValueError, match=r"one shape \(\.\.\., L, r\)"):
        low_rank_logits(u, v[:5], 16)


def test_sine_spe_is_the_exponential_of_its_logits():
    sines = rand(3), randn(3), torch.full((3,), 0.4, dtype=torch.float64)
    q, k = sine_factors(8, *sines)
    exact = (q @ k.mT).exp()
    assert exact.max() > 1.4 and exact.min() < 0.8
    mask = sine_spe(8, *sines, realizations=500, num_features=4000)
    torch.testing.assert_close(mask.dense(), exact, rtol=0.2, atol=0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sine_spe(0, *torch.rand(3, 2), 2, 3), "length must be at least 1, got 0"),
        (lambda: low_rank_logits([1.0], [1.0], 3), "u must be a number or a real .* got list"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
