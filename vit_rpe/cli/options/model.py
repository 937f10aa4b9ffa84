"""Options of all commands that run a model: which one, what it is shown, on which device."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from vit_rpe.data import CLIP_CROPS, VIDEO_BACKENDS
from vit_rpe.inference import AMP, VIDEO_OPTIONS, ModelSource

from ..command_line import Parser, positive_integer


def add_model(parser: Parser, required: bool = True) -> None:
    """Add the options that name a model; `model_source` reads them."""
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=required)
    what.add_argument("--checkpoint", help="a run, or a folder with model.safetensors")
    what.add_argument("--model", help="the name of a timm model")
    add("--pretrained", action="store_true", help="with --model: timm's published weights")
    add("--num-classes", type=positive_integer, help="with --model (default: the model's)")
    add("--no-ema", dest="ema", action="store_false", help="the weights, not their average")


def model_source(args: argparse.Namespace) -> ModelSource:
    """Return what the command line says about the model."""
    return ModelSource(args.checkpoint, args.model, args.pretrained, args.num_classes, args.ema)


def add_views(parser: Parser) -> None:
    """Add the options that say what a model is shown of an image or a video."""
    add = parser.add_argument
    add("--crop-pct", type=float, help="center crop (default: the model's)")
    add("--num-frames", type=positive_integer, help="of a clip (default: the model's)")
    video = parser.add_argument_group("videos (default: as the run did, or 1, 1, 1, pyav)")
    add = partial(video.add_argument, default=argparse.SUPPRESS)
    add("--frame-stride", type=_stride, help="frames to the next of a clip, or whole")
    add("--clips", type=positive_integer, help="averaged, spread over each video")
    add("--crops", type=int, choices=CLIP_CROPS, help="of each clip")
    add("--video-decoder", choices=VIDEO_BACKENDS, help="the library that decodes")


def video_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options for videos that were given."""
    return {name: getattr(args, name) for name in VIDEO_OPTIONS if hasattr(args, name)}


def add_device(parser: Parser) -> None:
    """Add the options that say where a model runs."""
    parser.add_argument("--amp", choices=tuple(AMP), help="mixed precision")
    device = "default: a GPU where there is one"
    parser.add_argument("--device", choices=("cpu", "cuda"), help=device)


def _stride(text: str) -> int | None:
    return None if text == "whole" else positive_integer(text)
