"""Evaluate a checkpoint, a run or a timm model on shards: exact on any number of processes.

    vit-rpe evaluate --checkpoint runs/quickstart --data data/digits
    vit-rpe evaluate --checkpoint runs/x/checkpoints/last --no-ema --data data/x
    vit-rpe evaluate --model vit_tiny_patch16_224 --pretrained --data data/imagenet
    vit-rpe evaluate --checkpoint runs/x --data data/x --img-size 192,224,256
    vit-rpe evaluate --checkpoint runs/video --data data/videos --clips 4 --crops 3
    accelerate launch --config_file $(vit-rpe recipes path cpu_x2) -m vit_rpe evaluate ...

A run means its best checkpoint, and the moving average of the weights where it has one.
Prints one line for each resolution. --output DIR keeps results.csv and results.json (timm's
columns), and for each resolution per_class-SIZE.csv and confusion-SIZE.csv, in a folder of
its own for each model: DIR/quickstart. report.html there is a page to look at (docs/report.md).

All samples of --split are evaluated. With --val-fraction F only those of its validation part are,
the ones that a run with val_fraction=F did not train on; without a number, F is that of the run.
The split is then train, if none is named.

A checkpoint knows the names of its classes: shards with others are refused, unless --map-classes is
given, which goes by the names.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from vit_rpe.data import (
    Images,
    Modality,
    ShardError,
    Shards,
    Videos,
    holds_videos,
    open_shards,
    split_by_key,
    try_decoder,
)
from vit_rpe.inference import ModelSource, data_config
from vit_rpe.program import program
from vit_rpe.training import (
    Evaluation,
    Reordered,
    class_names,
    class_order,
    evaluate,
    evaluation_loader,
    find_checkpoint,
    is_average,
    main_first,
    make_accelerator,
    peak_memory,
    results_folder,
    results_line,
    run_of,
    save_results,
    saved_recipe,
    shut_down,
    surroundings,
    unseen_pixels,
)

from .command_line import one_line_errors, write_json
from .options.evaluate import OF_THE_RUN, parse
from .options.model import model_source, video_options
from .reporting import add_report


def modality_for(
    args: argparse.Namespace, source: ModelSource, model: nn.Module, shards: Shards
) -> Modality:
    """Choose images or videos by what the shards hold; a video model also takes images."""
    given = video_options(args)
    videos = source.videos_for(model, given)
    if videos is not None and holds_videos(shards):
        return videos
    if given:
        raise ValueError(f"{', '.join(given)}: options for videos, and the data is of images")
    return Images()


def open_data(args: argparse.Namespace, model: nn.Module) -> Shards:
    """Open the shards; a video model looks for videos first, then for images."""
    kinds = (Videos, Images) if hasattr(model, "num_frames") else (Images,)
    for kind in kinds:
        shards = open_shards(args.data, args.split, endings=kind.endings)
        if (shards.rows["size"] >= 0).any():
            part = args.val_fraction
            return shards if part is None else split_by_key(shards, part)[1]
    raise ShardError(f"no sample at {args.data!r} has an image or a video that the model takes")


def settle_part(args: argparse.Namespace) -> str | None:
    """Settle the fraction of the validation part; return a warning if the run trained on it."""
    if args.val_fraction is None:
        return None
    path = find_checkpoint(args.checkpoint, "best") if args.checkpoint else None
    recipe = saved_recipe(path) if path is not None and run_of(path) is not None else None
    if args.val_fraction == OF_THE_RUN:
        if recipe is None or not recipe.val_fraction:
            raise ValueError("--val-fraction needs a number: there is no run that has one")
        args.val_fraction = recipe.val_fraction
    if recipe is None or recipe.train_split != args.split:
        return None
    if recipe.val_fraction >= args.val_fraction:
        return None
    return f"the run trained on samples of this part: its val_fraction is {recipe.val_fraction:g}"


def measure(
    args: argparse.Namespace,
    source: ModelSource,
    accelerator: Accelerator,
    shards: Shards,
    model: nn.Module,
    modality: Modality,
    size: int | None,
) -> tuple[dict[str, Any], Evaluation]:
    """Return one row of the results, and the evaluation behind it."""
    model = model.to(accelerator.device)
    config = data_config(model, size, args.crop_pct)
    if accelerator.is_main_process and (unseen := unseen_pixels(model, config["input_size"][-1])):
        print(f"{program('evaluate')}: warning: {unseen}", file=sys.stderr)
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
        "average": source.folder is not None and is_average(source.folder),
        "data": str(args.data),
        "split": args.split,
        "val_fraction": args.val_fraction or 0.0,
    }
    return row, result


def run(args: argparse.Namespace) -> None:
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    accelerator = make_accelerator(args.device, args.amp)
    sizes: list[int | None] = args.img_size or [None]
    if (warning := settle_part(args)) and accelerator.is_main_process:
        print(f"{program('evaluate')}: warning: {warning}", file=sys.stderr)
    source = model_source(args)
    model = source.build(sizes[0], args.num_frames)
    shards = main_first(accelerator, lambda: open_data(args, model))
    rows, results, parts = [], [], (model, shards, modality_for(args, source, model, shards))
    for number, size in enumerate(sizes):
        model = source.build(size, args.num_frames) if number else model
        modality = modality_for(args, source, model, shards)
        try_decoder(modality, shards)
        row, result = measure(args, source, accelerator, shards, model, modality, size)
        rows.append(row)
        results.append(result)
        if accelerator.is_main_process:
            print(results_line(row, modality.evaluated), flush=True)
    if args.output is not None and accelerator.is_main_process:
        folder = results_folder(args.output, args.checkpoint or args.model, rows[0])
        others = [name for name in class_names(model) if name not in shards.classes]
        names = [*shards.classes, *others]
        save_results(folder, rows, results, names)
        print(f"results are in {folder}")
        start = {**surroundings(), "time": begun, "processes": _processes(accelerator, args)}
        add_report("evaluate", lambda: _report(folder, rows, results, names, parts, start))
    if args.json is not None and accelerator.is_main_process:
        write_json(args.json, rows)


def _processes(accelerator: Accelerator, args: argparse.Namespace) -> dict[str, Any]:
    """Return how many processes evaluated, and how, as the log of a run does."""
    mixed = accelerator.mixed_precision
    return {
        "world_size": accelerator.num_processes,
        "device": accelerator.device.type,
        "precision": "float32" if mixed == "no" else mixed,
        "threads": torch.get_num_threads(),
        "workers": args.workers,
    }


def _report(
    folder: Path,
    rows: list[dict[str, Any]],
    results: list[Evaluation],
    names: list[str],
    parts: tuple[nn.Module, Shards, Modality],
    start: dict[str, Any],
) -> Path:
    """Make the page of an evaluation; one of several resolutions compares them."""
    from vit_rpe.report import NAME, Subject, write_page

    subjects = []
    for row, result in zip(rows, results, strict=True):
        words = f"{row['split']} of {row['data']}, {row['img_size']} pixels"
        name = f"{row['model']} at {row['img_size']}" if len(rows) > 1 else row["model"]
        subject = Subject(name, evaluation=result, answers_words=words, classes=names)
        subjects.append(subject)
    subjects[0].starts = [start]
    if len(rows) == 1:
        model, shards, modality = parts
        subjects[0].show_model(model, shards, modality)
        subjects[0].model_words = "average of the weights" if rows[0]["average"] else "weights"
    return write_page(subjects, folder / NAME)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv, __doc__)
    try:
        with one_line_errors(program("evaluate")):
            run(args)
    finally:
        shut_down()
    return 0
