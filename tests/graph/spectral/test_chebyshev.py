"""Bessel functions, and how many terms of an expansion are kept."""

import numpy as np
import pytest
import torch

from vit_rpe.graph.spectral.chebyshev import Interval, coefficients, scaled_bessel

special = pytest.importorskip("scipy.special", reason="needs scipy: pip install vit_rpe[graph]")


@pytest.mark.parametrize("z", [0.0, 1e-13, 1e-6, 0.3, 7.0, 200.0, 1e5])
def test_scaled_bessel(z):
    terms = scaled_bessel(z)
    expected = special.ive(np.arange(len(terms)), z)
    np.testing.assert_allclose(terms, expected, rtol=1e-10, atol=1e-25)


@pytest.mark.parametrize("lam", [2.5, -2.5])
def test_what_is_left_out_is_small_beside_the_norm_itself(lam):
    """An interval wider than the spectrum has a larger scale than the norm: more terms stay."""
    interval = Interval(-1.0, 2.0, 0.0, 1.8)
    terms = coefficients(torch.tensor([lam], dtype=torch.float64), interval, 1e-6)[0]
    rest = 2 * special.ive(np.arange(len(terms), len(terms) + 60), abs(lam) * 1.5).sum()
    scale = np.exp(-lam * 0.5 + abs(lam) * 1.5)
    norm = np.exp(-lam * (0.0 if lam > 0 else 1.8))
    assert rest * scale <= 1e-6 * norm
    one_less = rest + abs(float(terms[-1]))
    assert one_less * scale > 1e-6 * norm
