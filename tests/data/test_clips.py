"""Clips: which frames, one draw for all of them, views, mixing, and samples of one video."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.samples import write_shard
from tests.data.videos import archive, clip_sample, numbered
from vit_rpe.data import (
    BadData,
    Batch,
    ClipSampler,
    ClipTransform,
    Loader,
    Mixing,
    Plan,
    ShardError,
    Videos,
    open_shards,
    videos_of,
)


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


class TestSampler:
    def test_drawn_clips_start_anywhere_and_stay_inside(self):
        sampler = ClipSampler(4, stride=3)  # spans 10 frames
        starts = set()
        for seed in range(300):
            torch.manual_seed(seed)
            clip = sampler.random(14)
            assert np.diff(clip).tolist() == [3, 3, 3] and 0 <= clip[0] and clip[-1] < 14
            starts.add(clip[0])
        assert starts == {0, 1, 2, 3, 4}

    def test_evaluation_spreads_clips_from_end_to_end(self):
        assert ClipSampler(4, 3, clips=1).uniform(15) == [[2, 5, 8, 11]]
        starts = [clip[0] for clip in ClipSampler(4, 3, clips=3).uniform(14)]
        assert starts == [0, 2, 4]
        assert ClipSampler(2, 1, clips=3).uniform(2) == [[0, 1]] * 3

    @pytest.mark.parametrize("length", [4, 7, 10, 41])
    def test_without_a_stride_each_part_gives_a_frame(self, length):
        sampler = ClipSampler(4, stride=None, clips=2)
        edges = np.linspace(0, length, 5)
        drawn = [sampler.random(length) for _ in range(50)]
        for clip in [*drawn, *sampler.uniform(length)]:
            for i, number in enumerate(clip):
                assert int(edges[i]) <= number < edges[i + 1]
        assert len({tuple(clip) for clip in drawn}) > 1 or length == 4
        first, second = sampler.uniform(40)
        assert first == [2, 12, 22, 32] and second == [7, 17, 27, 37]

    @pytest.mark.parametrize(("stride", "least"), [(3, 10), (1, 4), (None, 4)])
    def test_too_short(self, stride, least):
        sampler = ClipSampler(4, stride)
        assert sampler.random(least) and sampler.uniform(least)
        for sample in (sampler.random, sampler.uniform):
            with pytest.raises(
                BadData, match=f"too short: {least - 1} frames, a clip needs {least}"
            ):
                sample(least - 1)

    @pytest.mark.parametrize("name", ["frames", "stride", "clips"])
    def test_refusals(self, name):
        with pytest.raises(ValueError, match=f"needs {name} >= 1, got 0"):
            ClipSampler(**{"frames": 2, name: 0})


RICH = {
    "crop": {"scale": (0.2, 0.9), "ratio": (0.5, 2.0), "hflip": 0.5, "vflip": 0.5},
    "colour": {"color_jitter": 0.4, "interpolation": "bilinear"},
    "rand": {"auto_augment": "rand-m9-n3"},
    "trivial": {"auto_augment": "trivial", "interpolation": "bicubic"},
}


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


CUTMIX = {"mixup_alpha": 0.0, "cutmix_alpha": 1.0, "label_smoothing": 0.0}
MIXUP = {"mixup_alpha": 1.0, "cutmix_alpha": 0.0, "label_smoothing": 0.0}


def batch_of(clips: Tensor, step: int) -> Batch:
    count = len(clips)
    labels = torch.arange(count)
    about = {"valid": labels >= 0, "sample_index": labels, "repeat": labels * 0}
    return Batch(0, step, 0, clips, labels, keys=[""] * count, bad=[], **about)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
class TestMixing:
    clips = torch.arange(1.0, 5).view(4, 1, 1, 1, 1) * torch.ones(4, 3, 5, 8, 14)

    def test_cutmix_cuts_a_box_of_space_through_all_frames(self, mode):
        mixing = Mixing(4, seed=0, mode=mode, options=CUTMIX)
        shares = set()
        for step in range(6):
            mixed, targets = mixing(batch_of(self.clips, step), self.clips, torch.arange(4))
            assert mixed.shape == self.clips.shape
            for i, clip in enumerate(mixed):
                assert (clip == clip[:1, :1]).all()  # the same box in all frames
                own = float((clip == i + 1).float().mean())
                assert targets[i, i].item() == pytest.approx(own, abs=1e-6)
                assert targets[i, i ^ 1].item() == pytest.approx(1 - own, abs=1e-6)
                shares.add(round(own, 3))
        assert len(shares) > 3

    def test_mixup_is_a_mean_of_two_clips(self, mode):
        mixing = Mixing(4, seed=0, mode=mode, options=MIXUP)
        mixed, targets = mixing(batch_of(self.clips, 3), self.clips, torch.arange(4))
        for i in range(4):
            own = targets[i, i]
            expected = own * (i + 1) + (1 - own) * ((i ^ 1) + 1)
            torch.testing.assert_close(mixed[i], expected.expand(3, 5, 8, 14))


def test_short_and_broken_videos_are_named_and_counted(tmp_path):
    samples = [clip_sample(i) for i in range(6)]
    samples[2] = clip_sample(2, count=3)
    samples[4]["zip"] = archive(4)[:300]
    write_shard(tmp_path / "x-train-000.tar", samples)
    shards = open_shards(str(tmp_path), endings=("mp4", "zip"))
    transform = ClipTransform(8, ClipSampler(4), training=True)
    plan = Plan(shards.lengths, 6, shuffle=False)
    loader = Loader(shards, plan, transform, modality=Videos())
    with pytest.raises(ShardError, match="2 of 6 samples are bad"):
        list(loader.epoch(0))
    assert loader.bad is not None
    reasons = {bad.key: bad.reason for bad in loader.bad.found.values()}
    assert reasons["k0002"] == "too short: 3 frames, a clip needs 4"
    assert reasons["k0004"].startswith("BadZipFile")


def test_batches_are_the_same_with_any_number_of_workers(tmp_path):
    write_shard(tmp_path / "x-train-000.tar", [clip_sample(i) for i in range(9)])
    shards = open_shards(str(tmp_path), endings=("zip",))
    plan = Plan(shards.lengths, 4, seed=5)
    transform = ClipTransform(8, ClipSampler(3), training=True, options=RICH["rand"])
    several = []
    for workers in (0, 2):
        loader = Loader(shards, plan, transform, workers=workers, modality=Videos())
        several.append(torch.cat([batch.images for batch in loader.batches(0, 4)]))
    assert torch.equal(*several) and several[0].shape == (16, 3, 3, 8, 8)


class TestVideosOf:
    def shards(self, folder, keys, labels):
        samples = [
            clip_sample(i, label, key)
            for i, (key, label) in enumerate(zip(keys, labels, strict=True))
        ]
        write_shard(folder / "x-000.tar", samples)
        return open_shards(str(folder), endings=("zip",))

    def test_clips_of_a_video_belong_together(self, tmp_path):
        keys = ["b-clip000", "a-clip000", "b-clip001", "c", "a-clip010"]
        assert videos_of(self.shards(tmp_path, keys, [1, 2, 1, 1, 2])).tolist() == [1, 0, 1, 2, 0]

    def test_whole_videos_stand_alone(self, tmp_path):
        assert videos_of(self.shards(tmp_path, ["b", "clip000", "c-clip"], [1, 2, 3])) is None

    def test_labels_of_one_video_agree(self, tmp_path):
        with pytest.raises(ShardError, match="video 'b' have different labels, 1 and 3"):
            videos_of(self.shards(tmp_path, ["b-clip000", "b-clip001"], [1, 3]))
