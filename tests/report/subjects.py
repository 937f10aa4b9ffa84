"""Small models of all kinds with samples, and runs, for tests of reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch

import vit_rpe.models  # noqa: F401  registers the models
from vit_rpe.data import Images, Videos, open_shards
from vit_rpe.data.making import Arrays, Clips, VideoPreparation, make_shards
from vit_rpe.report import Subject
from vit_rpe.training import Evaluation

EVIL = ["<script>alert(1)</script>", "</script><b>bold</b>", "a & b", "'\"--><img src=x>"]
SMALL = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
PREFIXED = {"class_token": True, "global_pool": "token", "border": "learned"}
PLAIN = {"class_token": False, "global_pool": "avg"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("performer_rpe2d_tiny_patch16_224", {**PLAIN, "rpe_init": "decay"}),
    "prefix": ("performer_rpe2d_tiny_patch16_224", {**PREFIXED, "reg_tokens": 2}),
    "favor": ("performer_rpe2d_tiny_patch16_224", {**PREFIXED, "feature_map": "favor"}),
    "softmax": ("vit_rpe2d_tiny_patch16_224", {**PREFIXED, "rpe_init": "decay"}),
    "exponential": ("performer_rpe2d_tiny_patch16_224", {**PREFIXED, "rpe": "exponential"}),
    "no mask": ("performer_tiny_patch16_224", PREFIXED),
    "video": ("performer_rpe3d_tiny_patch16_224", {**PLAIN, "rpe_init": "decay"}),
    "causal video": ("vit_rpe3d_tiny_patch16_224", {**PREFIXED, "causal_time": True}),
}


def make_model(kind: str, classes: int = 4) -> Any:
    """A model whose masks and weights have all been moved away from their start."""
    name, options = MODELS[kind]
    sizes = {"img_size": (12, 20)}  # 3 x 5 patches: unequal sides
    if "3d" in name:
        sizes |= {"num_frames": 4, "tubelet_size": 2}
    model = timm.create_model(name, num_classes=classes, **SMALL, **options, **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def make_subject(kind: str, folder: Path, count: int = 20) -> Subject:
    """A model with samples of four classes, whose names are markup."""
    model: Any = make_model(kind)
    draw = np.random.default_rng(0)
    labels = np.arange(count) % 4
    video = hasattr(model, "num_frames")
    shape = (count, 4, 20, 20) if video else (count, 20, 20)
    pixels = draw.integers(0, 256, shape, dtype=np.uint8)
    if video:
        make_shards(Clips(pixels, labels, EVIL), folder, "val", VideoPreparation())
    else:
        make_shards(Arrays(pixels, labels, EVIL), folder, "val")
    modality = Videos(4) if video else Images()
    shards = open_shards(str(folder), "val", endings=modality.endings)
    # timm's transform makes squares; 3 x 5 patches of 4 pixels want 12 x 20
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 20, 20), "crop_pct": 1.0}
    subject = Subject("a <b>name</b>", classes=EVIL)
    # shards have an order of their own
    subject.evaluation = make_evaluation(np.array(shards.rows["label"]))
    subject.show_model(model, shards, modality)
    _crop(subject)
    return subject


def _crop(subject: Subject) -> None:
    """Give the model the middle rows only, so that its grid has unequal sides."""
    pick: Any = subject.loader.pick  # pyright: ignore

    def picked(numbers: list[int]) -> Any:
        batch = pick(numbers)
        return batch._replace(images=batch.images[..., 4:16, :])

    subject.loader.pick = picked  # pyright: ignore


def make_evaluation(labels: np.ndarray, seed: int = 1) -> Evaluation:
    draw = np.random.default_rng(seed)
    count = len(labels)
    predicted = np.where(draw.random(count) < 0.6, labels, draw.integers(0, 4, count))
    rank = np.where(predicted == labels, 0, 1)
    confidence, losses = draw.random(count), draw.random(count) + rank
    return Evaluation(np.arange(count), labels, predicted, confidence, rank, losses, 4, 1, 0.5)
