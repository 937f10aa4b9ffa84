"""Models as people name them: a run, a checkpoint, or a name that timm knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import timm
from timm.data.config import resolve_model_data_config
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from torch import nn

from vit_rpe.data import Videos
from vit_rpe.training import (
    CheckpointError,
    class_names,
    find_checkpoint,
    find_model,
    load_model,
    run_of,
    saved_recipe,
)

LOCAL = "local-dir:"  # what timm calls a folder with a model
VIDEO_OPTIONS = {  # what evaluation calls them, and what a modality does
    "frame_stride": "stride",
    "clips": "clips",
    "crops": "crops",
    "video_decoder": "backend",
}


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: a run or a checkpoint, or else timm, by a name.

    A run means its best checkpoint, and with `ema` the moving average of the weights where it has
    one. Weights of timm are random unless they are `pretrained`.
    """

    checkpoint: str | Path | None = None
    name: str | None = None
    pretrained: bool = False
    num_classes: int | None = None
    ema: bool = True

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.name is None):
            raise ValueError("a model is a checkpoint or a name of timm's: give one of them")

    @property
    def title(self) -> str:
        """The model as it was named."""
        return self.name or str(self.checkpoint)

    @property
    def has_random_weights(self) -> bool:
        return self.folder is None and not self.pretrained

    @cached_property
    def folder(self) -> Path | None:
        """The folder that timm loads, compared with its checksums; None for a name of timm's."""
        if self.name is not None and not self.name.startswith(LOCAL):
            return None
        return find_model(self.checkpoint or str(self.name).removeprefix(LOCAL), self.ema)

    def build(self, img_size: int | None = None, num_frames: int | None = None) -> nn.Module:
        """Build the model; positions and masks of a checkpoint are resampled to other sizes."""
        model: Any = self._create()
        if hasattr(model, "num_frames"):
            # not every mask tells for how many frames it was made: it is loaded, then changed
            model.set_input_size(img_size, num_frames=num_frames)
        elif num_frames is not None:
            raise ValueError("--num-frames is for models of videos, and this is one of images")
        elif img_size is not None and model.pretrained_cfg.get("fixed_input_size"):
            model = self._create(img_size=img_size)
        return model

    def _create(self, **options: Any) -> nn.Module:
        if self.folder is not None:
            return load_model(self.folder, **options)[1]
        options.update(pretrained=self.pretrained, num_classes=self.num_classes)
        try:
            return timm.create_model(str(self.name), **options)
        except Exception as error:  # timm, the hub and the network raise many kinds
            raise CheckpointError(f"{self.name} cannot be built: {error}") from None

    def videos_for(self, model: Any, given: Mapping[str, Any]) -> Videos | None:
        """Say how clips are taken of videos for a model; None if it is a model of images.

        What is not `given` (the names of VIDEO_OPTIONS) is as in the run that trained the model.
        """
        if not hasattr(model, "num_frames"):
            if given:
                raise ValueError(
                    f"{', '.join(given)}: options for videos, and the model is of images"
                )
            return None
        options = {VIDEO_OPTIONS[name]: value for name, value in given.items()}
        return Videos(model.num_frames, **{**self._as_the_run_did(), **options})

    def _as_the_run_did(self) -> dict[str, Any]:
        if self.checkpoint is None:
            return {}
        path = find_checkpoint(self.checkpoint, "best")
        if run_of(path) is None:
            return {}
        recipe = saved_recipe(path)
        names = {"stride": "frame_stride", "clips": "val_clips", "crops": "val_crops"}
        options = {key: getattr(recipe, name) for key, name in names.items()}
        return {**options, "backend": recipe.video_decoder}

    def names_of(self, model: nn.Module) -> list[str]:
        """Name all classes: as the checkpoint does, as ImageNet does, or by their numbers."""
        names, count = class_names(model), int(model.num_classes)  # pyright: ignore
        described = getattr(model, "pretrained_cfg", {}).get("label_descriptions")
        if isinstance(described, dict):  # of models on the Hub whose names are WordNet's numbers
            names = [str(described.get(name, name)) for name in names]
        if not names and self.folder is None and self.pretrained:
            names = _imagenet_names(model)
        return [*names[:count], *map(str, range(len(names), count))]


def data_config(
    model: nn.Module, img_size: int | None = None, crop_pct: float | None = None
) -> dict[str, Any]:
    """Return timm's data config of a model (mean, std, crop_pct, ...), with what differs."""
    config: dict[str, Any] = resolve_model_data_config(model)  # pyright: ignore
    if img_size is not None:
        config["input_size"] = (3, img_size, img_size)
    if crop_pct is not None:
        config["crop_pct"] = crop_pct
    return config


def _imagenet_names(model: nn.Module) -> list[str]:
    """Name the classes of a published model, which timm knows by their number only."""
    subset = infer_imagenet_subset(model)
    if subset is None:
        return []
    info = ImageNetInfo(subset)
    return [info.index_to_description(index) for index in range(info.num_classes())]
