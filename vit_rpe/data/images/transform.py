"""Image to tensor, by timm.data and torchvision; the caller seeds their draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

from PIL import Image
from timm.data import auto_augment
from timm.data.transforms import ResizeKeepRatio
from timm.data.transforms_factory import create_transform
from torch import Tensor
from torchvision import transforms

from ..augment.normalize import NormalizeAndErase
from .decode import check_resized

TRIVIAL = "trivial"  # torchvision's TrivialAugmentWide, besides the names that timm knows
# arguments of timm.data.create_transform; it has others, for us to settle or for other models
OPTIONS = frozenset(
    (
        *("scale", "ratio", "train_crop_mode", "hflip", "vflip", "no_aug"),
        *("color_jitter", "color_jitter_prob", "grayscale_prob", "gaussian_blur_prob"),
        *("auto_augment", "re_prob", "re_mode", "re_count"),
        *("interpolation", "mean", "std", "crop_pct", "crop_mode", "crop_border_pixels"),
    )
)
LEAST_CROP, MOST_CROP = 0.1, 2.0  # crop_pct: a small one resizes to many times what is kept

Apply = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Resolution:
    """The side of the images by epoch: from `first` to `last` over some epochs, then `last`.

    Sides are multiples of `multiple`, the size of a patch.
    """

    last: int
    first: int | None = None
    epochs: int = 0
    multiple: int = 16

    def __post_init__(self) -> None:
        for side in (self.last, self.first or self.last):
            if side <= 0 or (self.epochs and side % self.multiple):
                raise ValueError(f"sides are positive multiples of {self.multiple}, got {side}")

    def __call__(self, epoch: int) -> int:
        if self.first is None or epoch >= self.epochs - 1:
            return self.last
        grown = self.first + (self.last - self.first) * epoch / (self.epochs - 1)
        return int(grown / self.multiple + 0.5) * self.multiple


@dataclass(frozen=True)
class ImageTransform:
    """timm's transform of images, with timm's option names, at the resolution of each epoch.

    `auto_augment` is a RandAugment ("rand-m9-mstd0.5-inc1"), AutoAugment ("original", "v0"),
    3-Augment ("3a") or AugMix policy of timm's, or "trivial". `options` are the other arguments of
    timm.data.create_transform: scale, ratio, hflip, color_jitter, re_prob, mean, std, crop_pct, ...

    As in timm, workers hand over bytes, a quarter of what floats would be, and whole batches are
    normalized, and parts of them erased, by `normalize`, on the device of the model.
    """

    size: int | Resolution
    training: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.options) - OPTIONS)
        if unknown:
            raise ValueError(f"no option {unknown[0]!r}; there are {', '.join(sorted(OPTIONS))}")
        crop = self.options.get("crop_pct")
        if crop is not None and not LEAST_CROP <= crop <= MOST_CROP:
            raise ValueError(f"crop_pct of images is from {LEAST_CROP} to {MOST_CROP}, got {crop}")
        self(0)  # a wrong value is an error now, not in a worker

    def __call__(self, epoch: int) -> Apply:
        return self._at(self._side(epoch))

    def shape(self, epoch: int) -> tuple[int, int, int]:
        return len(self._normalize.mean), self._side(epoch), self._side(epoch)

    def normalize(self, images: Tensor, draws: Sequence[tuple[int, ...]]) -> Tensor:
        """Normalize images and erase parts of some; `draws` are the keys of their random draws."""
        return self._normalize(images, draws)

    @cached_property
    def _normalize(self) -> NormalizeAndErase:
        return NormalizeAndErase.from_options(self.options, training=self.training, dims=2)

    def _side(self, epoch: int) -> int:
        return self.size if isinstance(self.size, int) else self.size(epoch)

    @cached_property
    def _at(self) -> Callable[[int], Apply]:
        return lru_cache(maxsize=2)(self._make)

    def _make(self, side: int) -> Apply:
        options = {"is_training": self.training, "use_prefetcher": True, **self.options}
        trivial = options.get("auto_augment") == TRIVIAL
        if trivial:
            # it takes the place of timm's policies, which turn color jitter off
            options.update(auto_augment=None, color_jitter=None)
        if not (trivial and self.training):
            return _mended(_limited(create_transform(side, **options)))
        parts: Any = create_transform(side, separate=True, **options)
        first = _limited(parts[0])
        return transforms.Compose([first, transforms.TrivialAugmentWide(), *parts[1:]])

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "training": self.training, "options": self.options}


def _limited(transform: Any) -> Any:
    """Put a check of the resized image before timm's transform."""

    def check(image: Image.Image) -> Image.Image:
        check_resized(*image.size, side, longer=longer)
        return image

    for step in transform.transforms:
        if isinstance(step, ResizeKeepRatio):
            side, longer = max(step.size), step.longest > 0
        elif isinstance(step, transforms.Resize) and isinstance(step.size, int):
            side, longer = step.size, False
        else:
            continue  # it makes what it is told, whatever the image
        transform.transforms.insert(0, check)
        break
    return transform


def _mended(transform: Any) -> Apply:
    """Replace timm's posterize by one that can keep 0 bits, as its policies sometimes ask for."""
    for step in transform.transforms:
        policy = getattr(step, "policy", None) or [getattr(step, "ops", [])]
        for op in chain.from_iterable(policy):
            if op.aug_fn is auto_augment.posterize:
                op.aug_fn = _posterize
    return transform


def _posterize(image: Image.Image, bits_to_keep: int, **options: Any) -> Image.Image:
    """Posterize an image; one that keeps no bits becomes black, where Pillow 13 raises an error."""
    if bits_to_keep < 1:
        return Image.new(image.mode, image.size)
    return auto_augment.posterize(image, bits_to_keep, **options)
