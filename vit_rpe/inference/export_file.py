"""Models as files for programs without this package: ONNX, and torch.export's .pt2.

A file takes what evaluation gives the model, normalized float32 images (B, 3, H, W) or clips
(B, 3, T, H, W), and returns logits (B, K). How to make the one and what the others mean is in its
metadata. It is written only after it has computed what the model computes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import vit_rpe
from vit_rpe.files import atomic_write

from .classifier import Classifier
from .formats import FORMATS, OPEN_BATCH, Run, traced

TOLERANCE = 1e-3  # of the largest logit
TRIALS = (2, 1, 5)  # batches of random inputs that are compared; the model is traced with the first


class ExportFailed(RuntimeError):
    """A file that does not compute what the model computes; it was not written."""


@dataclass(frozen=True)
class Comparison:
    """The largest difference of the logits on random inputs, and the largest logit."""

    difference: float
    largest: float
    batches: Sequence[int]

    @property
    def is_good(self) -> bool:
        return self.difference <= TOLERANCE * max(self.largest, 1.0)  # false for NaN

    def __str__(self) -> str:
        batches = ", ".join(map(str, sorted(self.batches)))
        return (
            f"logits differ by at most {self.difference:.1e} of {self.largest:.3g} "
            f"(random inputs, batches of {batches})"
        )


def export(classifier: Classifier, file: str | Path, batch_size: int | None = None) -> Comparison:
    """Write a model as ONNX (`.onnx`) or as a program of torch.export (`.pt2`), and check it.

    The batch is open, or `batch_size`. Raises ValueError if a model cannot be exported, and
    ExportFailed if the file would not say what the model says.
    """
    path = Path(file)
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: the ending is one of {', '.join(FORMATS)}")
    batches = TRIALS if batch_size is None else (batch_size,)
    inputs = [_random_input(classifier, count) for count in batches]
    shapes = OPEN_BATCH if batch_size is None else None
    program = traced(classifier.model, inputs[0], shapes)
    data, run = FORMATS[path.suffix](program, inputs[0], shapes, metadata(classifier))
    comparison = _compared(classifier.model, run, inputs)
    if not comparison.is_good:
        raise ExportFailed(
            f"{path} would not say what the model says, and is not written: {comparison}"
        )
    with atomic_write(path) as out:
        out.write(data)
    return comparison


def metadata(classifier: Classifier) -> dict[str, str]:
    """Return what a program must know to use the file, each value as JSON.

    `label_names` are the classes in the order of the logits; `preprocessing` says how inputs are
    made: resize the shorter side to size / crop_pct, crop the middle, scale to 0 .. 1, subtract
    mean and divide by std.
    """
    config = classifier.config
    names = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    preprocessing = {name: config[name] for name in names if config.get(name) is not None}
    preprocessing["size"] = list(config["input_size"][1:])
    if classifier.videos is not None:
        preprocessing["num_frames"] = classifier.videos.frames
        preprocessing["frame_stride"] = classifier.videos.stride
    values = {
        "label_names": list(classifier.names),
        "preprocessing": preprocessing,
        "architecture": (getattr(classifier.model, "pretrained_cfg", {}) or {}).get("architecture"),
        "source": f"vit_rpe {vit_rpe.__version__}",
    }
    return {name: json.dumps(value) for name, value in values.items()}


def _compared(model: nn.Module, run: Run, inputs: Sequence[Tensor]) -> Comparison:
    """Compare a file with the model, which computes as it would in evaluation."""
    with torch.no_grad():
        expected = [model(images) for images in inputs]
        errors = [run(images) - logits for images, logits in zip(inputs, expected, strict=True)]
    difference, largest = (torch.cat(each).abs().max().item() for each in (errors, expected))
    return Comparison(difference, largest, [len(images) for images in inputs])


def _random_input(classifier: Classifier, count: int) -> Tensor:
    frames = [] if classifier.videos is None else [classifier.videos.frames]
    channels, *sides = classifier.config["input_size"]
    draw = torch.Generator().manual_seed(count)
    return torch.randn(count, channels, *frames, *sides, generator=draw)
