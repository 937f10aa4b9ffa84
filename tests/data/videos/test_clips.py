"""Which frames make a clip, and which samples are clips of one video."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.data.samples import write_shard
from tests.data.video_samples import clip_sample
from vit_rpe.data import (
    BadData,
    ClipSampler,
    ShardError,
    open_shards,
    videos_of,
)


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
