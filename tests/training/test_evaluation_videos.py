"""Every video is counted once, by the mean of its views and clips."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.data.samples import write_shard
from tests.data.video_samples import archive, clip_sample
from tests.training.launch import launch
from tests.training.video_runs import SIDES, make_videos


class Told(nn.Module):
    """Logits that follow from the pixels of a clip alone."""

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        assert clips.shape[1:] == (3, 4, 8, 8)
        seeds = [zlib.crc32(clip.contiguous().numpy().tobytes()) for clip in clips]
        rows = [np.random.default_rng(seed).standard_normal(12) for seed in seeds]
        return torch.from_numpy(np.stack(rows)).float() * 3


CONFIG = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0}


def evaluate_videos(folder: str) -> Any:
    from vit_rpe.data import VIDEO_ENDINGS, BadSamples, Videos, open_shards
    from vit_rpe.training import evaluation_loader
    from vit_rpe.training.distributed import main_first, make_accelerator
    from vit_rpe.training.evaluation import evaluate

    accelerator = make_accelerator("cpu", None)
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    shards = main_first(accelerator, lambda: open_shards(folder, "val", endings=VIDEO_ENDINGS))
    modality, bad = Videos(4, stride=1, clips=2, crops=3), BadSamples(shards.num_samples, 0.5)
    loader = evaluation_loader(
        shards, 12, CONFIG, 4, modality=modality, bad=bad, workers=1, **place
    )
    return evaluate(Told(), loader, accelerator, 12)


def expected_probabilities(clips: int = 3) -> torch.Tensor:
    """The mean over clips, times and crops of each video, one by one, without shards or loaders."""
    from vit_rpe.data import ClipSampler, ClipTransform, VideoDecoder

    videos = []
    for i in range(7):
        said = []
        for c in range(clips):
            opened = VideoDecoder()(archive(100 + 3 * i + c, **SIDES))
            transform = ClipTransform(8, ClipSampler(4, 1, 2), False, 3, options=_look())
            views = transform.normalize(transform(0)(opened)[None], [])[0]
            said.append(Told()(views).softmax(1).mean(0))
        videos.append(torch.stack(said).mean(0))
    return torch.stack(videos)


def _look() -> dict[str, Any]:
    return {name: CONFIG[name] for name in ("mean", "std", "crop_pct")}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_video_is_counted_once_by_the_mean_of_its_views(tmp_path, world):
    folder = make_videos(tmp_path)
    expected = expected_probabilities()
    labels = torch.arange(7)
    for result in launch(evaluate_videos, folder, world=world):
        assert (result.count, result.bad) == (7, 0)
        np.testing.assert_array_equal(result.labels, labels)
        np.testing.assert_array_equal(result.predicted, expected.argmax(1))
        np.testing.assert_allclose(result.confidence, expected.amax(1), rtol=1e-5)
        losses = -expected[labels, labels].log()
        np.testing.assert_allclose(result.losses, losses, rtol=1e-5)
        assert 100 * (result.label_rank < 1).mean() == result.metrics["top1"]


def test_a_video_with_a_bad_clip_is_the_mean_of_the_others(tmp_path):
    clips = [clip_sample(100 + c, 3, f"v-clip{c:03d}", **SIDES) for c in range(3)]
    clips[2]["zip"] = b"no video"
    write_shard(tmp_path / "x-val-000.tar", clips)
    (result,) = launch(evaluate_videos, str(tmp_path))
    assert (result.count, result.bad) == (1, 1)
    expected = expected_probabilities(clips=2)[0]
    assert result.losses[0] == pytest.approx(float(-expected[3].log()), rel=1e-5)
