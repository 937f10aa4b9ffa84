"""Make shards of images or videos for training, or verify shards that are there.

    vit-rpe shards digits data/digits
    vit-rpe shards folder ~/imagenet data/imagenet --workers 16 --img-size 256
    vit-rpe shards folder photos data/photos --val-fraction 0.1
    vit-rpe shards csv list.csv data/mine
    vit-rpe shards idx fashion-mnist data/fashion-mnist
    vit-rpe shards torchvision CIFAR10 data/cifar10 --root downloads --download
    vit-rpe shards video ~/kinetics data/kinetics --workers 16 --img-size 256
    vit-rpe shards moving-digits data/moving-digits
    vit-rpe shards moving-pairs fashion-mnist data/moving-fashion
    vit-rpe shards verify data/digits

Work that was stopped goes on when the same command is given again. The same source and options
make the same bytes, whatever the number of workers.
"""

from __future__ import annotations

import argparse
import sys

from vit_rpe.data import (
    BadSamples,
    Videos,
    is_pattern,
    open_shards,
    read_info,
    recorded_modality,
    verify,
)
from vit_rpe.data.making import Preparation, endings_in_words, make_shards
from vit_rpe.messages import cut
from vit_rpe.program import program

from .command_line import DONE, STOPPED, fail
from .options.shards import parse


def prepared(args: argparse.Namespace) -> Preparation:
    """Return the preparation of the samples, with the options that the command has."""
    names = ("samples_per_shard", "size", "quality", "crf", "clip_frames", "min_frames")
    options = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return args.preparation(seed=None if args.keep_order else args.seed, **options)


def make(args: argparse.Namespace) -> None:
    preparation = prepared(args)
    for split, source in args.origin(args).items():
        info = make_shards(
            source,
            args.output,
            split,
            preparation,
            workers=args.workers,
            max_bad=args.max_bad,
            progress=not args.quiet,
        )
        bad = BadSamples(len(source), path=args.output / f"bad_samples-{split}.csv")
        print(
            f"{split}: {info.num_samples} samples in {len(info.filenames)} shards, "
            f"{sum(info.shard_bytes) / 1e6:.1f} MB, {len(bad)} of {len(source)} left out as bad"
        )
        if passed := getattr(source, "passed_over", {}):
            files, kinds = sum(passed.values()), ", ".join(preparation.endings)
            what = f"{endings_in_words(passed)} (taken are {kinds})"
            print(f"{split}: {files} files passed over: {what}")
    print(f"shards, index and _info.json are in {args.output}")


def check(args: argparse.Namespace) -> None:
    info = None if is_pattern(args.source) else read_info(args.source)
    splits = [args.split] if args.split or info is None else sorted(info.splits)
    for split in splits:
        listed = info.splits.get(split) if info else None
        modality = Videos() if args.video else recorded_modality(listed.made if listed else {})
        shards = open_shards(
            args.source,
            split,
            endings=modality.endings,
            allow_pipe=args.allow_pipe,
            workers=args.workers,
            progress=not args.quiet,
        )
        found = verify(
            shards,
            listed,
            num_classes=args.num_classes or len(shards.classes) or None,
            modality=modality,
            workers=args.workers,
            progress=not args.quiet,
        )
        for bad in found:
            print(f"bad: {bad.shard} {bad.key}: {bad.reason}")
        name = split or args.source
        print(
            f"{name}: {shards.num_samples} samples in {len(shards.urls)} shards, {len(found)} bad"
        )
        BadSamples(shards.num_samples, args.max_bad).add(found)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv, __doc__)
    try:
        if args.verify:
            check(args)
        else:
            make(args)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return STOPPED
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        fail(program("shards"), cut(error) or type(error).__name__)
    return DONE
