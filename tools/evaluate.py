"""Evaluate a checkpoint, a run or a timm model on shards: exact on any number of processes.

    python tools/evaluate.py --checkpoint runs/quickstart --data data/digits
    python tools/evaluate.py --checkpoint runs/x/checkpoints/last --no-ema --data data/x
    python tools/evaluate.py --model vit_tiny_patch16_224 --pretrained --data data/imagenet
    python tools/evaluate.py --checkpoint runs/x --data data/x --img-size 192,224,256
    python tools/evaluate.py --checkpoint runs/video --data data/videos --clips 4 --crops 3
    accelerate launch --config_file recipes/accelerate/cpu_x2.yaml tools/evaluate.py ...

A run means its best checkpoint, and the moving average of the weights where it has one.
Prints one line for each resolution. --output DIR keeps results.csv and results.json (timm's
columns), and for each resolution per_class-SIZE.csv and confusion-SIZE.csv, in a folder of
its own for each model: DIR/quickstart.

A checkpoint knows the names of its classes: shards with others are refused, unless --map-classes is
given, which goes by the names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from accelerate import Accelerator
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout: tools, vit_rpe

import vit_rpe  # noqa: F401  registers the models
from tools.common.command_line import described_parser, one_line_errors, positive_integer
from tools.common.evaluation_results import results_folder, save, show
from vit_rpe.data import (
    CLIP_CROPS,
    VIDEO_BACKENDS,
    Images,
    Modality,
    ShardError,
    Shards,
    Videos,
    holds_videos,
    open_shards,
    try_decoder,
)
from vit_rpe.training import (
    CheckpointError,
    Evaluation,
    class_names,
    evaluate,
    evaluation_loader,
    find_checkpoint,
    find_model,
    is_average,
    load_model,
    main_first,
    make_accelerator,
    peak_memory,
    run_of,
    saved_recipe,
    shut_down,
    unseen_pixels,
)

VIDEO_OPTIONS = {  # and what a modality calls them
    "frame_stride": "stride",
    "clips": "clips",
    "crops": "crops",
    "video_decoder": "backend",
}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = described_parser("evaluate", __doc__)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", help="a run, or a folder with model.safetensors")
    what.add_argument("--model", help="the name of a timm model")
    add("--pretrained", action="store_true", help="with --model: timm's published weights")
    add("--num-classes", type=positive_integer, help="with --model (default: the model's)")
    add("--data", required=True, help="shards: a folder, an address or a pattern")
    add("--split", default="val")
    add("--no-ema", dest="ema", action="store_false", help="the weights, not their average")
    add("--map-classes", action="store_true", help="go by the names of classes, not their order")
    add("--img-size", type=sizes, help="one resolution or several: 192,224 (default: the model's)")
    add("--batch-size", type=positive_integer, default=64, help="of one process")
    add("--workers", type=int, default=4)
    add("--crop-pct", type=float, help="center crop (default: the model's)")
    add("--num-frames", type=positive_integer, help="of a clip (default: the model's)")
    video = parser.add_argument_group("videos (default: as the run did, or 1, 1, 1, pyav)")
    add = partial(video.add_argument, default=argparse.SUPPRESS)
    add("--frame-stride", type=stride, help="frames to the next of a clip, or whole")
    add("--clips", type=positive_integer, help="averaged, spread over each video")
    add("--crops", type=int, choices=CLIP_CROPS, help="of each clip")
    add("--video-decoder", choices=VIDEO_BACKENDS)
    add = parser.add_argument
    add("--amp", choices=("bf16", "fp16"), help="mixed precision")
    add("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    add("--output", type=Path, help="folder for CSV and JSON")
    return parser.parse_args(argv)


def sizes(text: str) -> list[int]:
    return [positive_integer(part) for part in text.split(",")]


def stride(text: str) -> int | None:
    return None if text == "whole" else positive_integer(text)


def build(args: argparse.Namespace, size: int | None) -> nn.Module:
    """Build the model at one resolution; positions and masks of a checkpoint are resampled."""
    model: Any = create(args)
    if hasattr(model, "num_frames"):
        # not every mask tells for how many frames it was made, so it is loaded before it changes
        model.set_input_size(size, num_frames=args.num_frames)
    elif args.num_frames is not None:
        raise ValueError("--num-frames is for models of videos, and this is one of images")
    elif size is not None and model.pretrained_cfg.get("fixed_input_size"):
        model = create(args, img_size=size)
    return model


def create(args: argparse.Namespace, **options: Any) -> nn.Module:
    if args.checkpoint:
        return load_model(find_model(args.checkpoint, args.ema), **options)[1]
    options.update(pretrained=args.pretrained, num_classes=args.num_classes)
    try:
        return timm.create_model(args.model, **options)
    except Exception as error:  # timm, the hub and the network raise many kinds
        raise CheckpointError(f"{args.model} cannot be built: {error}") from None


def modality_for(args: argparse.Namespace, model: Any, shards: Shards) -> Modality:
    """Choose images or videos by what the shards hold; a video model also takes images."""
    given = {key: getattr(args, name) for name, key in VIDEO_OPTIONS.items() if hasattr(args, name)}
    if not hasattr(model, "num_frames") or not holds_videos(shards):
        if given:
            what = "model" if not hasattr(model, "num_frames") else "data"
            raise ValueError(f"{', '.join(given)}: options for videos, and the {what} is of images")
        return Images()
    return Videos(model.num_frames, **{**as_the_run_did(args), **given})


def as_the_run_did(args: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling of the recipe that a checkpoint comes from, if it comes from one."""
    if not args.checkpoint:
        return {}
    path = find_checkpoint(args.checkpoint, "best")
    if run_of(path) is None:
        return {}
    recipe = saved_recipe(path)
    names = {"stride": "frame_stride", "clips": "val_clips", "crops": "val_crops"}
    options = {key: getattr(recipe, name) for key, name in names.items()}
    return {**options, "backend": recipe.video_decoder}


def open_data(args: argparse.Namespace, model: nn.Module) -> Shards:
    """Open the shards; a video model looks for videos first, then for images."""
    kinds = (Videos, Images) if hasattr(model, "num_frames") else (Images,)
    for kind in kinds:
        shards = open_shards(args.data, args.split, endings=kind.endings)
        if (shards.rows["size"] >= 0).any():
            return shards
    raise ShardError(f"no sample at {args.data!r} has an image or a video that the model takes")


def class_order(
    names: Sequence[str], num_classes: int, shards: Shards, by_name: bool
) -> list[int] | None:
    """Return the model's output for each class of the shards, then the others; None: in order."""
    wanted = list(shards.classes)
    if not names or not wanted or list(names) == wanted:
        return None
    if not by_name:
        raise ValueError(
            f"the shards have {_few(wanted)}, the checkpoint was trained on {_few(names)}; "
            "--map-classes goes by the names"
        )
    if unknown := [name for name in wanted if name not in names]:
        raise ValueError(f"the checkpoint was not trained on {_few(unknown)} of the shards")
    first = [names.index(name) for name in wanted]
    return first + [output for output in range(num_classes) if output not in first]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} classes ({shown})" if len(names) > 1 else f"the class {shown}"


class Reordered(nn.Module):
    """A model with its outputs in another order."""

    def __init__(self, model: nn.Module, order: list[int]):
        super().__init__()
        self.model = model
        self.register_buffer("order", torch.tensor(order), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[:, self.order]


def measure(
    args: argparse.Namespace,
    accelerator: Accelerator,
    shards: Shards,
    model: nn.Module,
    modality: Modality,
    size: int | None,
) -> tuple[dict[str, Any], Evaluation]:
    """Return one row of the results, and the evaluation behind it."""
    model = model.to(accelerator.device)
    config: dict[str, Any] = resolve_model_data_config(model)  # pyright: ignore
    if size is not None:
        config["input_size"] = (3, size, size)
    if args.crop_pct is not None:
        config["crop_pct"] = args.crop_pct
    if accelerator.is_main_process and (unseen := unseen_pixels(model, config["input_size"][-1])):
        print(f"evaluate: warning: {unseen}", file=sys.stderr)
    num_classes = int(model.num_classes)  # pyright: ignore
    loader = evaluation_loader(
        shards,
        num_classes,
        config,
        args.batch_size,
        workers=args.workers,
        modality=modality,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        device=accelerator.device,
    )
    with torch.no_grad(), accelerator.autocast():  # what happens once is not counted as speed
        model.eval()(torch.zeros(1, *config["input_size"], device=accelerator.device))
    order = class_order(class_names(model), num_classes, shards, args.map_classes)
    judged = model if order is None else Reordered(model, order).to(accelerator.device)
    result = evaluate(judged, loader, accelerator, num_classes)
    metrics = result.metrics
    row = {
        "model": args.model or str(args.checkpoint),
        "top1": round(metrics["top1"], 4),
        "top1_err": round(100 - metrics["top1"], 4),
        "top5": round(metrics["top5"], 4),
        "top5_err": round(100 - metrics["top5"], 4),
        "param_count": round(sum(p.numel() for p in model.parameters()) / 1e6, 4),
        "img_size": config["input_size"][-1],
        "crop_pct": config["crop_pct"],
        "interpolation": config["interpolation"],
        "loss": metrics["loss"],
        "calibration_error": result.calibration_error(),
        "samples": result.count,
        "bad_samples": result.bad,
        "img_per_s": round(result.count / result.seconds, 1),
        "peak_memory_mb": round(peak_memory() / 1e6, 1),
        "average": bool(args.checkpoint) and is_average(find_model(args.checkpoint, args.ema)),
        "data": str(args.data),
        "split": args.split,
    }
    return row, result


def run(args: argparse.Namespace) -> None:
    accelerator = make_accelerator(args.device, args.amp)
    sizes: list[int | None] = args.img_size or [None]
    model = build(args, sizes[0])
    shards = main_first(accelerator, lambda: open_data(args, model))
    rows, results = [], []
    for number, size in enumerate(sizes):
        model = build(args, size) if number else model
        modality = modality_for(args, model, shards)
        try_decoder(modality, shards)
        row, result = measure(args, accelerator, shards, model, modality, size)
        rows.append(row)
        results.append(result)
        if accelerator.is_main_process:
            print(show(row, modality.evaluated), flush=True)
    if args.output is not None and accelerator.is_main_process:
        folder = results_folder(args.output, args.checkpoint or args.model, rows[0])
        others = [name for name in class_names(model) if name not in shards.classes]
        save(folder, rows, results, [*shards.classes, *others])
        print(f"results are in {folder}")


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        with one_line_errors("evaluate"):
            run(args)
    finally:
        shut_down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
