"""A model that is ready to judge images and videos as evaluation does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit_rpe.data import Images, Modality, Transform, Videos
from vit_rpe.training import choose_device, class_logits, evaluation_transform, unseen_pixels

from .loading import ModelSource, data_config

AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Classifier:
    """A model, the names of its classes, and how it wants its images and videos.

    `config` is timm's data config; `videos` says how clips are taken, None for a model of images.
    """

    model: nn.Module
    config: dict[str, Any]
    names: Sequence[str]
    videos: Videos | None = None
    device: torch.device = torch.device("cpu")
    amp: torch.dtype | None = None
    has_random_weights: bool = False
    title: str = ""

    @cached_property
    def ways(self) -> list[tuple[Modality, Transform]]:
        """The modalities that the model takes, each with the transform of evaluation."""
        taken: list[Modality] = [Images()] if self.videos is None else [self.videos, Images()]
        return [(modality, evaluation_transform(modality, self.config)) for modality in taken]

    @property
    def warnings(self) -> list[str]:
        """Say in lines what somebody who believes this classifier should know."""
        random = (
            f"the weights of {self.title} are random, and so is what it says: --pretrained takes "
            "timm's published ones, --checkpoint yours"
        )
        unseen = unseen_pixels(self.model, self.config["input_size"][-1])
        return [random] * self.has_random_weights + ([] if unseen is None else [unseen])

    def probabilities(self, pixels: Tensor, way: int = 0) -> Tensor:
        """Return the probabilities (B, K) of bytes of pixels from the transform of a way.

        Pixels are (B, C, H, W), clips (B, C, T, H, W) or their views (B, V, C, T, H, W).
        """
        images = self.ways[way][1].normalize(pixels.to(self.device), [])
        with (
            torch.no_grad(),
            torch.autocast(self.device.type, self.amp, enabled=self.amp is not None),
        ):
            logits = class_logits(self.model, images)
        logits = logits.nan_to_num(nan=-torch.inf)  # as in evaluation: it is wrong, not absent
        return logits.double().softmax(-1).nan_to_num().cpu()


def load_classifier(
    source: ModelSource | str | Path,
    *,
    img_size: int | None = None,
    num_frames: int | None = None,
    crop_pct: float | None = None,
    device: str | None = None,
    amp: str | None = None,
    **video_options: Any,
) -> Classifier:
    """Load a classifier from a run, a checkpoint, or any source of a model.

    `video_options` are frame_stride, clips, crops and video_decoder, by default those of the run.
    Nothing in a checkpoint is executed.
    """
    source = source if isinstance(source, ModelSource) else ModelSource(source)
    chosen = choose_device(device, amp)
    model = source.build(img_size, num_frames)
    return Classifier(
        model.to(chosen).eval(),
        data_config(model, img_size, crop_pct),
        source.names_of(model),
        source.videos_for(model, video_options),
        chosen,
        None if amp is None else AMP[amp],
        source.has_random_weights,
        source.title,
    )
