"""Videos to clips: one draw for all frames, views, limits."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch

from tests.data.samples import encoded, thin
from tests.data.video_samples import RICH, numbered
from vit_rpe.data import (
    BadData,
    ClipSampler,
    ClipTransform,
    VideoDecoder,
)
from vit_rpe.data.making import VideoPreparation


class Frames:
    """A video in memory that remembers which frames were asked for."""

    rate = None

    def __init__(self, frames: np.ndarray):
        self.pixels, self.asked = torch.from_numpy(frames).permute(0, 3, 1, 2), []
        self.num_frames = len(frames)

    def frames(self, numbers):
        self.asked += list(numbers)
        return self.pixels[list(numbers)]

    def __iter__(self):
        return iter(self.pixels.permute(0, 2, 3, 1).numpy())


def noise(frames: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


class TestTransform:
    @pytest.mark.parametrize("options", RICH.values(), ids=RICH)
    def test_one_draw_for_all_frames(self, options):
        still = np.repeat(noise(1, 20, 31), 6, 0)
        transform = ClipTransform(12, ClipSampler(5), training=True, options=options)
        seen = []
        for seed in range(8):
            torch.manual_seed(seed)
            clip = transform(0)(Frames(still))
            assert clip.shape == transform.shape(0) == (3, 5, 12, 12) and clip.dtype == torch.uint8
            assert all(torch.equal(clip[:, t], clip[:, 0]) for t in range(5))
            seen.append(clip)
        assert any(not torch.equal(clip, seen[0]) for clip in seen)

    def test_only_the_frames_of_a_clip_are_decoded(self):
        video = Frames(noise(100, 8, 8))
        ClipTransform(8, ClipSampler(4, 2), training=True)(0)(video)
        assert len(video.asked) == 4
        video = Frames(noise(100, 8, 8))
        ClipTransform(8, ClipSampler(4, 2, clips=2), crops=3)(0)(video)
        assert len(video.asked) == 8

    @pytest.mark.parametrize(("height", "width"), [(12, 17), (19, 12), (12, 12)])
    def test_views_are_clips_times_crops(self, height, width):
        frames = noise(9, height, width)
        transform = ClipTransform(12, ClipSampler(3, 2, clips=2), crops=3)
        views = transform(0)(Frames(frames))
        assert views.shape == transform.shape(0) == (6, 3, 3, 12, 12) and transform.views == 6
        expected = []
        for clip in ([0, 2, 4], [4, 6, 8]):
            for third in (0, (max(height, width) - 12) // 2, max(height, width) - 12):
                rows = slice(third, third + 12) if height > width else slice(0, 12)
                columns = slice(0, 12) if height > width else slice(third, third + 12)
                expected.append(frames[clip, rows, columns].transpose(3, 0, 1, 2))
        np.testing.assert_array_equal(views.numpy(), np.stack(expected))

    def test_a_single_view_is_the_middle(self):
        frames = noise(9, 14, 18)
        clip = ClipTransform(10, ClipSampler(3), options={"crop_pct": 10 / 14})(0)(Frames(frames))
        expected = frames[3:6, 2:12, 4:14].transpose(3, 0, 1, 2)
        np.testing.assert_array_equal(clip.numpy(), expected)

    def test_resizing_keeps_the_order_of_frames(self):
        clip = ClipTransform(12, ClipSampler(4, 2))(0)(Frames(numbered(9)))
        level = clip[:, :, :, :3].float().mean((0, 2, 3))
        np.testing.assert_allclose(level, 10 + 7 * np.array([1, 3, 5, 7]), atol=1)

    @pytest.mark.parametrize("mode", ["const", "pixel"])
    def test_erasing_takes_one_box_of_all_frames(self, mode):
        options = {"re_prob": 1.0, "re_mode": mode, "mean": (0.2, 0.3, 0.4), "std": (0.5, 0.6, 0.7)}
        transform = ClipTransform(16, ClipSampler(4), training=True, options=options)
        clips = torch.full((3, 3, 4, 16, 16), 200, dtype=torch.uint8)
        done = transform.normalize(clips, [(0, 0, i, 0) for i in range(3)])
        plain = (200 / 255 - torch.tensor([0.2, 0.3, 0.4])) / torch.tensor([0.5, 0.6, 0.7])
        erased = ~torch.isclose(done, plain[:, None, None, None], atol=1e-4)
        for clip in erased:
            box = clip[0, 0]
            assert 0 < box.sum() < box.numel() and (clip == box).all()
            rows, columns = box.any(1), box.any(0)
            assert box.sum() == rows.sum() * columns.sum()
        assert not torch.equal(erased[0], erased[1])

    def test_views_are_normalised(self):
        transform = ClipTransform(
            4, ClipSampler(2), options={"mean": (0.1, 0.2, 0.3), "std": (1, 2, 4)}
        )
        clips = torch.randint(0, 256, (2, 5, 3, 2, 4, 4), dtype=torch.uint8)
        mean, std = (torch.tensor(x).view(3, 1, 1, 1) for x in ((0.1, 0.2, 0.3), (1.0, 2.0, 4.0)))
        torch.testing.assert_close(transform.normalize(clips, []), (clips / 255 - mean) / std)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"auto_augment": "rand-m9-mstd0.5"}, "trivial or rand-mM-nN, got 'rand-m9-mstd0.5'"),
            ({"auto_augment": "rand-m11"}, "M from 0 to 10"),
            ({"interpolation": "wavelet"}, "no interpolation 'wavelet' for clips"),
            ({"re_prob": 0.5, "re_mode": "rand"}, "another color"),
            ({"crop_mode": "squash"}, "crop_mode of clips is center"),
            ({"scales": 1}, "no option 'scales' for clips"),
        ],
    )
    def test_refusals(self, options, message):
        with pytest.raises(ValueError, match=message):
            ClipTransform(8, ClipSampler(2), training=True, options=options)
        with pytest.raises(ValueError, match="no interpolation 'random' for clips"):
            ClipTransform(8, ClipSampler(2), options={"interpolation": "random"})
        with pytest.raises(ValueError, match="crop_pct of clips is at most 1, got 1.2"):
            ClipTransform(8, ClipSampler(2), options={"crop_pct": 1.2})
        with pytest.raises(ValueError, match="crops of a clip are 1 or 3, got 2"):
            ClipTransform(8, ClipSampler(2), crops=2)


def zipped(*frames: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for number, frame in enumerate(frames):
            file.writestr(f"{number}.png", frame)
    return stream.getvalue()


def test_what_resizing_a_clip_would_make_is_limited():
    data = zipped(*[thin()] * 2)
    transform = ClipTransform(224, ClipSampler(2))
    with pytest.raises(BadData, match="resized to a shorter side of 224 it would have"):
        transform(0)(VideoDecoder()(data))
    with pytest.raises(BadData, match="resized to a shorter side of 224"):
        VideoPreparation(size=224).prepare(data, "zip")
    long = zipped(*[encoded(i, height=30, width=3000) for i in range(12)])  # not one frame, all
    with pytest.raises(BadData, match="12 frames"):
        ClipTransform(700, ClipSampler(12))(0)(VideoDecoder()(long))
