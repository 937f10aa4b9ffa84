"""Clips through the trainer: exact resume, every video counted once, one line for wrong input."""

from __future__ import annotations

import signal
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.data.samples import sample, write_shard
from tests.data.video_samples import archive, clip_sample, video
from tests.training.launch import launch, train
from tests.training.runs import assert_same_run, progress, write_recipe
from tests.training.test_resume import run_and_stop, run_to_end

SIDES = {"count": 7, "height": 9, "width": 14}
VIDEO: dict[str, Any] = {
    "model": "performer_rpe3d_tiny_patch16_224",
    "model_kwargs": {
        **{"patch_size": 4, "tubelet_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2},
        **{"class_token": False, "global_pool": "avg", "rpe_init": "decay"},
    },
    **{"img_size": 8, "num_frames": 4, "val_clips": 2, "val_crops": 3, "crop_pct": 1.0},
    **{"mixup": 0.4, "cutmix": 1.0, "aa": "rand-m5-n2", "reprob": 0.3, "drop_path": 0.1},
}


def make_videos(folder: Path, count: int = 40) -> str:
    """Two splits; of the second one every video is three clips, in shards of different lengths."""
    write_shard(folder / "x-train-000.tar", (clip_sample(i, **SIDES) for i in range(count - 9)))
    files = [clip_sample(50 + i, **SIDES) for i in range(9)]
    for each in files[::2]:  # video files among folders of frames
        each["mp4"] = video(9, "mp4", height=10, width=14)
        del each["zip"]
    write_shard(folder / "x-train-001.tar", files)
    clips = [
        clip_sample(100 + 3 * i + c, i % 10, f"v{i:03d}-clip{c:03d}", **SIDES)
        for i in range(7)
        for c in range(3)
    ]
    order = np.random.default_rng(0).permutation(len(clips))
    for number, part in enumerate(np.array_split(order, 4)):
        write_shard(folder / f"x-val-{number:03d}.tar", (clips[i] for i in part))
    return str(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, Path]:
    """A run on clips that was never stopped, with one and with two processes."""
    folder = tmp_path_factory.mktemp("video")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    recipe = write_recipe(folder / "tiny.yaml", **values, resume="auto")
    for world in (1, 2):
        codes = launch(run_to_end, recipe, f"experiment=whole{world}", world=world)
        assert codes == [0] * world
    return {world: folder / f"whole{world}" for world in (1, 2)}


@pytest.mark.parametrize(
    ("world", "where", "at"), [(1, "step", 6), (1, "evaluation", 2), (2, "step", 7)]
)
def test_a_stopped_run_goes_on_bit_equal(whole, world, where, at):
    run = whole[world].parent / f"stopped-{world}-{where}-{at}"
    recipe, name = str(run.parent / "tiny.yaml"), f"experiment={run.name}"
    stop = {"where": where, "at": at, "rank": world - 1, "signal": signal.SIGTERM}
    assert launch(run_and_stop, recipe, stop, name, world=world) == [75] * world
    assert progress(run)["step"] < 15
    assert '"clips_per_s"' in (run / "log.jsonl").read_text()
    assert launch(run_to_end, recipe, name, "workers=1", world=world) == [0] * world
    assert_same_run(run, whole[world], names=("last",))


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


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("wrong")
    values = {**VIDEO, "data_dir": make_videos(folder / "data"), "output": str(folder)}
    return write_recipe(folder / "tiny.yaml", **values)


WRONG = {
    "num_frames=6": "a clip needs",
    "num_frames=3": "num_frames must be a multiple of tubelet_size",
    "num_frames=null": "val_clips is for videos: it needs num_frames",
    "val_crops=2": "val_crops",
    "channels_last=true": "channels_last is for images",
    "aa=rand-m9-mstd0.5": "trivial or rand-mM-nN",
    "remode=rand": "another color",
    "model=performer_rpe2d_tiny_patch16_224": "unexpected keyword argument",
    "video_decoder=ffmpeg": "video_decoder",
    "frame_stride=0": "frame_stride",
    "crop_pct=1.5": "crop_pct of clips is at most 1, got 1.5",
    "interpolation=wavelet": "no interpolation 'wavelet' for clips",
    "model_kwargs.num_frames=8": "num_frames is 4, and 8 in model_kwargs",
    "data_source=digits": "data_source digits makes images: take away num_frames",
}


@pytest.mark.parametrize("override", WRONG)
def test_one_line_for_what_cannot_be(recipe, override):
    more = ["frame_stride=2"] if override == "num_frames=6" else []
    code, shown = train("--recipe", recipe, override, *more, f"experiment={override[:9]}")
    error = [line for line in shown.splitlines() if "error:" in line]
    assert code == 2 and len(error) == 1 and WRONG[override] in error[0], shown


def test_images_are_no_videos(tmp_path, recipe):
    write_shard(tmp_path / "x-train-000.tar", map(sample, range(12)))
    write_shard(tmp_path / "x-val-000.tar", map(sample, range(12)))
    code, shown = train("--recipe", recipe, f"data_dir={tmp_path}", "experiment=images")
    assert code == 2 and "missing member: no" in shown


def test_a_dry_run_makes_its_own_clips(tmp_path, recipe):
    options = (f"data_dir={tmp_path}/none", "frame_stride=3", "grad_accum_steps=2")
    code, shown = train("--recipe", recipe, "--dry-run", *options)
    assert code == 0 and "random clips stand in" in shown and "G for a clip" in shown


def test_a_teacher_of_clips(tmp_path, recipe):
    kwargs = {**VIDEO["model_kwargs"], "img_size": 8, "num_frames": 4}
    teacher = str(tmp_path / "teacher")
    code, shown = train("--recipe", recipe, "epochs=2", "experiment=t", f"output={teacher}")
    assert code == 0, shown
    overrides = ["kd_model_name=performer_rpe3d_tiny_patch16_224", f"kd_model_kwargs={kwargs}"]
    overrides += [f"kd_checkpoint={teacher}/t", "epochs=2", "experiment=taught"]
    code, shown = train("--recipe", recipe, *overrides)
    assert code == 0, shown
