"""Turns an image model into a video model that sees a still clip as the image.

    python tools/inflate.py runs/image --output inflated --num-frames 16
    python train.py --recipe recipes/my_videos.yaml initial_checkpoint=inflated

The source is a run of train.py, one of its checkpoints, or a directory that timm loads
(tools/convert_timm.py makes one of a softmax ViT). So is the result.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import timm
from timm.models import save_for_hf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout: tools, vit_rpe

import vit_rpe  # noqa: F401  registers the models
from tools.common.command_line import described_parser, one_line_errors, positive_integer
from tools.common.model_folder import check_output
from vit_rpe.models import inflate
from vit_rpe.training import class_names, find_model, load_model, with_classes


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = described_parser("inflate", __doc__)
    add = parser.add_argument
    add("source", help="a run, a checkpoint, or a folder with model.safetensors")
    add("--output", type=Path, required=True, metavar="DIR")
    add("--overwrite", action="store_true", help="write into a directory that is not empty")
    add("--model", help="the video model (default: the image model's name with 3d for 2d)")
    add("--num-frames", type=positive_integer, default=16)
    add("--tubelet-size", type=positive_integer, default=2)
    add("--no-ema", dest="ema", action="store_false", help="the weights, not their average")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> str:
    check_output(args.output, args.overwrite)
    folder = find_model(args.source, args.ema)
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
    with one_line_errors("inflate"):
        name = run(args)
    print(f"{name} for {args.num_frames} frames is in {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
