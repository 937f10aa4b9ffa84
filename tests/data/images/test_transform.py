"""What resizing an image would make is limited."""

from __future__ import annotations

import pytest
import torch

from tests.data.samples import thin
from vit_rpe.data import (
    BadData,
    ClipSampler,
    ClipTransform,
    ImageDecoder,
    ImageTransform,
)
from vit_rpe.data.making import ImagePreparation


def test_what_resizing_would_make_is_limited():
    image = ImageDecoder()(thin())
    with pytest.raises(
        BadData, match="resized to a shorter side of 256 it would have 256 x 5120000"
    ):
        ImageTransform(224, options={"crop_pct": 0.875})(0)(image)
    with pytest.raises(BadData, match="longer side of 256 it would have 0 x 256"):
        ImageTransform(224, options={"crop_pct": 0.875, "crop_mode": "border"})(0)(image)
    with pytest.raises(BadData, match="resized to a shorter side of 256"):
        ImagePreparation(size=256).prepare(thin(), "png")
    torch.manual_seed(0)
    assert ImageTransform(224, training=True)(0)(image).shape == (3, 224, 224)
    assert ImageTransform(16)(0)(ImageDecoder()(thin(300))).shape == (3, 16, 16)


@pytest.mark.parametrize("value", [1e-9, 0.0005, 0, -1, 3.0, float("inf"), float("nan")])
def test_crop_pct_is_bounded(value):
    with pytest.raises(ValueError, match=r"crop_pct .* 0\.1 to 2"):
        ImageTransform(224, options={"crop_pct": value})
    with pytest.raises(
        ValueError, match=r"crop_pct of clips is at most 1, got .* \(at least 0\.1\)"
    ):
        ClipTransform(224, ClipSampler(2), options={"crop_pct": value})
