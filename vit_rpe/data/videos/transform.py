"""Video to clips, by torchvision's transforms: a draw holds for all frames of a clip."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as tvf

from ..augment.normalize import NormalizeAndErase
from ..images.decode import check_resized
from ..images.transform import LEAST_CROP, TRIVIAL
from .clips import ClipSampler
from .containers import Video

CLIP_CROPS = (1, 3)
_RAND = re.compile(r"rand(?:-m(\d+)|-n(\d+))*")
_OPTIONS = (
    *("scale", "ratio", "hflip", "vflip", "color_jitter", "auto_augment", "interpolation"),
    *("re_prob", "re_mode", "re_count", "mean", "std", "crop_pct", "crop_mode"),
)


@dataclass(frozen=True)
class ClipTransform:
    """A transform of videos to clips (C, T, H, W) of bytes, or several views (V, C, T, H, W).

    `options` are those of ImageTransform, as far as they make sense for clips: `auto_augment` is
    "trivial" or a RandAugment "rand-m9-n2" (magnitude out of 10, operations). Clips are not flipped
    unless `hflip` says so: it would turn a motion to the left into one to the right. `crops` = 3
    are the two ends and the middle of the longer side, in evaluation.
    """

    size: int
    sampler: ClipSampler
    training: bool = False
    crops: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.options) - set(_OPTIONS))
        if unknown:
            raise ValueError(f"no option {unknown[0]!r} for clips; there are {', '.join(_OPTIONS)}")
        if self.crops not in CLIP_CROPS:
            raise ValueError(f"crops of a clip are 1 or 3, got {self.crops}")
        if self.options.get("re_mode") == "rand" and self.options.get("re_prob"):
            raise ValueError("re_mode 'rand' would give each frame another color: const or pixel")
        if self.options.get("crop_mode") not in (None, "center"):
            raise ValueError(f"crop_mode of clips is center, got {self.options['crop_mode']!r}")
        crop = self.options.get("crop_pct", 1.0)
        if not LEAST_CROP <= crop <= 1:
            raise ValueError(f"crop_pct of clips is at most 1, got {crop} (at least {LEAST_CROP})")
        _ = self._augment if self.training else self._mode  # wrong values now, not in a worker

    def __call__(self, epoch: int) -> Callable[[Video], Tensor]:
        return self._drawn if self.training else self._views

    @property
    def views(self) -> int:
        """Number of views of a video: clips x crops in evaluation, 1 in training."""
        return 1 if self.training else self.sampler.clips * self.crops

    def shape(self, epoch: int) -> tuple[int, ...]:
        clip = (len(self._normalize.mean), self.sampler.frames, self.size, self.size)
        return clip if self.views == 1 else (self.views, *clip)

    def normalize(self, images: Tensor, draws: Sequence[tuple[int, ...]]) -> Tensor:
        """Normalize clips and erase a box of all frames from some."""
        return self._normalize(images, draws)

    def _drawn(self, video: Video) -> Tensor:
        frames = video.frames(self.sampler.random(video.num_frames))
        clip: Tensor = self._augment(tv_tensors.Video(frames))
        return clip.as_subclass(Tensor).transpose(0, 1)

    def _views(self, video: Video) -> Tensor:
        clips = self.sampler.uniform(video.num_frames)
        numbers = sorted({number for clip in clips for number in clip})
        frames = self._resized(video.frames(numbers))
        views = [
            crop[[numbers.index(number) for number in clip]].transpose(0, 1)
            for clip in clips
            for crop in self._cropped(frames)
        ]
        return views[0] if len(views) == 1 else torch.stack(views)

    def _resized(self, frames: Tensor) -> Tensor:
        side = int(self.size / self.options.get("crop_pct", 1.0))
        check_resized(frames.shape[-1], frames.shape[-2], side, frames=len(frames))
        return tvf.resize(frames, [side], interpolation=self._mode, antialias=True)

    def _cropped(self, frames: Tensor) -> list[Tensor]:
        height, width = frames.shape[-2:]
        top, left = (height - self.size) // 2, (width - self.size) // 2
        corners = [(top, left)]
        if self.crops == 3:
            wide = width >= height
            ends = (0, left, width - self.size) if wide else (0, top, height - self.size)
            corners = [(top, end) if wide else (end, left) for end in ends]
        return [frames[..., y : y + self.size, x : x + self.size] for y, x in corners]

    @cached_property
    def _mode(self) -> InterpolationMode:
        return _interpolation(self.options.get("interpolation", "bilinear"))

    @cached_property
    def _augment(self) -> Callable[[Tensor], Tensor]:
        o = self.options
        steps: list[Any] = [_random_crop(self.size, o)]
        flips = (
            (v2.RandomHorizontalFlip, o.get("hflip", 0)),
            (v2.RandomVerticalFlip, o.get("vflip", 0)),
        )
        steps += [flip(p) for flip, p in flips if p]
        jitter = o.get("color_jitter")
        if o.get("auto_augment") is not None:
            steps.append(_policy(o["auto_augment"]))  # as in timm, instead of color jitter
        elif jitter:
            steps.append(v2.ColorJitter(jitter, jitter, jitter))
        return v2.Compose(steps)

    @cached_property
    def _normalize(self) -> NormalizeAndErase:
        return NormalizeAndErase.from_options(self.options, training=self.training, dims=3)


def _random_crop(size: int, options: dict[str, Any]) -> v2.Transform:
    scale, ratio = options.get("scale", (0.08, 1.0)), options.get("ratio", (3 / 4, 4 / 3))
    names = options.get("interpolation", "random")
    names = ("bilinear", "bicubic") if names == "random" else (names,)
    crops = [
        v2.RandomResizedCrop(size, scale, ratio, _interpolation(name), antialias=True)
        for name in names
    ]
    return crops[0] if len(crops) == 1 else v2.RandomChoice(crops)


def _interpolation(name: str) -> InterpolationMode:
    try:
        return InterpolationMode(name)
    except ValueError:
        raise ValueError(f"no interpolation {name!r} for clips: bilinear, bicubic, ...") from None


def _policy(name: str) -> v2.Transform:
    if name == TRIVIAL:
        return v2.TrivialAugmentWide()
    match = _RAND.fullmatch(name)
    if match is None:
        raise ValueError(f"augmentation of clips is trivial or rand-mM-nN, got {name!r}")
    magnitude, operations = int(match[1] or 9), int(match[2] or 2)
    if magnitude > 10 or operations < 1:
        raise ValueError(f"rand-mM-nN has M from 0 to 10 and N from 1, got {name!r}")
    return v2.RandAugment(operations, magnitude, num_magnitude_bins=11)  # out of 10, as in timm
