"""Turn an image model into a video model that sees a still clip as the image.

    vit-rpe inflate --checkpoint runs/image --output inflated --num-frames 16
    vit-rpe train --recipe my_videos.yaml initial_checkpoint=inflated

The source is a run, one of its checkpoints, or a folder that timm loads (`vit-rpe convert` makes
one of a softmax ViT). So is the result.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import timm
from timm.models import save_for_hf

from vit_rpe.models import inflate
from vit_rpe.program import program
from vit_rpe.training import class_names, find_model, load_model, with_classes

from .command_line import (
    check_output,
    command_parser,
    old_spelling,
    one_line_errors,
    positive_integer,
)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = command_parser("inflate", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        metavar="PATH",
        help="a run, a checkpoint, or a folder with model.safetensors",
    )
    old_spelling(parser, "source", nargs="?", default=None)
    add("--output", type=Path, required=True, metavar="DIR", help="folder for the video model")
    add("--overwrite", action="store_true", help="write into a directory that is not empty")
    model = "the video model (default: the image model's name with 3d for 2d)"
    add("--model", metavar="NAME", help=model)
    number = {"type": positive_integer, "metavar": "N"}
    add("--num-frames", **number, default=16, help="of a clip (default: 16)")
    add("--tubelet-size", **number, default=2, help="frames of a token (default: 2)")
    add("--no-ema", dest="ema", action="store_false", help="the weights, not their average")
    args = parser.parse_args(argv)
    if (args.checkpoint is None) == (args.source is None):
        parser.error("one --checkpoint is required")
    args.checkpoint = args.checkpoint or args.source
    return args


def run(args: argparse.Namespace) -> str:
    check_output(args.output, args.overwrite)
    folder = find_model(args.checkpoint, args.ema)
    loaded: tuple[dict[str, Any], Any] = load_model(folder)
    config, image = loaded
    name = args.model or config["architecture"].replace("2d", "3d")
    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}; name a video model with --model")
    sizes = {"num_frames": args.num_frames, "tubelet_size": args.tubelet_size}
    model_args = {**config.get("model_args", {}), "num_classes": image.num_classes, **sizes}
    try:
        video = inflate(image, name, **model_args)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name} cannot be made of {folder}: {error}") from None
    with_classes(video, class_names(image))
    if image.num_prefix_tokens:
        model_args["border"] = "learned"
    save_for_hf(video, str(args.output), safe_serialization=True, model_args=model_args)
    return name


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    with one_line_errors(program("inflate")):
        name = run(args)
    print(f"{name} for {args.num_frames} frames is in {args.output}")
    return 0
