"""Make shards of images or videos for training, or verify shards that are there.

    python tools/make_shards.py digits data/digits
    python tools/make_shards.py folder ~/imagenet data/imagenet --workers 16 --size 256
    python tools/make_shards.py folder photos data/photos --val-fraction 0.1
    python tools/make_shards.py csv list.csv data/mine
    python tools/make_shards.py idx fashion-mnist data/fashion-mnist
    python tools/make_shards.py torchvision CIFAR10 data/cifar10 --root downloads --download
    python tools/make_shards.py video ~/kinetics data/kinetics --workers 16 --size 256
    python tools/make_shards.py moving-digits data/moving-digits
    python tools/make_shards.py moving-pairs fashion-mnist data/moving-fashion
    python tools/make_shards.py verify data/digits

A run that was stopped goes on when the same command is given again. The same source and options
make the same bytes, whatever the number of workers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout: tools, vit_rpe

from tools.common.command_line import Parser, fail, positive_integer
from vit_rpe.data import (
    DEFAULT_BAD_LIMIT,
    BadSamples,
    Videos,
    is_pattern,
    open_shards,
    read_info,
    recorded_modality,
    verify,
)
from vit_rpe.data.making import (
    ImagePreparation,
    Preparation,
    Source,
    VideoPreparation,
    csv_file,
    digits,
    endings_in_words,
    hold_out,
    idx_folder,
    image_folder,
    make_shards,
    moving_digits,
    moving_pairs,
    torchvision_dataset,
    video_folder,
    video_table,
)
from vit_rpe.messages import cut

Origin = Callable[[argparse.Namespace], Mapping[str, Source]]

MOST_WORKERS = 512


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def between(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise ValueError
    return value


def processes(text: str) -> int:
    value = positive_integer(text)
    if value > MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"at most {MOST_WORKERS} processes, got {value}")
    return value


def add_making(
    parser: argparse.ArgumentParser,
    origin: Origin,
    preparation: type[ImagePreparation] | type[VideoPreparation] = ImagePreparation,
) -> None:
    add = parser.add_argument
    add("output", type=Path, help="folder for the shards")
    add("--samples-per-shard", type=positive_integer, default=preparation.samples_per_shard)
    add("--seed", type=int, default=0, help="of the order of samples")
    add("--keep-order", action="store_true", help="do not shuffle")
    add_common(parser)
    parser.set_defaults(run=make, origin=origin, preparation=preparation)


def add_size(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--size", type=positive_integer, help="shorter side, re-encoded (default: bytes kept)")
    add(
        "--quality",
        type=positive_integer,
        default=ImagePreparation.quality,
        help="of re-encoded JPEGs",
    )


def add_held_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--val-fraction",
        type=between,
        help="hold out this fraction of each class as the split val, by file names",
    )


def held_out(args: argparse.Namespace, splits: Mapping[str, Source]) -> Mapping[str, Source]:
    return splits if args.val_fraction is None else hold_out(splits, args.val_fraction)


def add_video(kinds: argparse._SubParsersAction) -> None:
    kind = kinds.add_parser("video", help="class/video.mp4 or class/video/frame.jpg, or a .csv")
    kind.add_argument("source", type=Path)
    kind.add_argument("--split", default="train", help="name, where there is no train/ or val/")
    kind.add_argument("--root", type=Path, help="folder of the paths in a .csv (default: its own)")
    add = kind.add_argument
    add("--clip-frames", type=positive_integer, help="one sample for each clip of this many frames")
    add("--min-frames", type=positive_integer, default=1, help="shorter videos are bad")
    add("--crf", type=int, default=VideoPreparation.crf, help="quality of re-encoded videos (x264)")
    add_held_out(kind)
    add_size(kind)
    add_making(kind, videos, VideoPreparation)
    kind = kinds.add_parser("moving-digits", help="scikit-learn's digits in motion: tiny clips")
    add_making(kind, lambda _: moving_digits(), VideoPreparation)
    kind = kinds.add_parser("moving-pairs", help="pairs of Fashion-MNIST's items in motion")
    kind.add_argument("source", type=Path, help="folder of its idx files")
    kind.add_argument("--train", type=positive_integer, default=12_000, help="clips to train on")
    kind.add_argument("--test", type=positive_integer, default=2_000, help="clips to test on")
    add_making(kind, lambda a: moving_pairs(a.source, a.train, a.test), VideoPreparation)


def videos(args: argparse.Namespace) -> Mapping[str, Source]:
    if args.source.suffix.lower() == ".csv":
        return held_out(args, video_table(args.source, args.root))
    return held_out(args, video_folder(args.source, args.split))


def add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--workers", type=processes, default=os.cpu_count() or 1, help="processes")
    add(
        "--max-bad",
        type=share,
        default=DEFAULT_BAD_LIMIT,
        help="share of bad samples that is tolerated",
    )
    add("--quiet", action="store_true", help="no progress bar")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="make_shards",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, parser_class=Parser)
    kind = kinds.add_parser("digits", help="scikit-learn's 8 x 8 digits, without a network")
    add_size(kind)
    add_making(kind, lambda _: digits())
    kind = kinds.add_parser("folder", help="class/image.jpg, also below train/ and val/")
    kind.add_argument("source", type=Path)
    kind.add_argument("--split", default="train", help="name, where there is no train/ or val/")
    add_held_out(kind)
    add_size(kind)
    add_making(kind, lambda args: held_out(args, image_folder(args.source, args.split)))
    kind = kinds.add_parser(
        "csv", help="a table with the columns path, label and, if wanted, split"
    )
    kind.add_argument("source", type=Path)
    kind.add_argument("--root", type=Path, help="folder of the paths (default: that of the table)")
    add_held_out(kind)
    add_size(kind)
    add_making(kind, lambda args: held_out(args, csv_file(args.source, args.root)))
    kind = kinds.add_parser("idx", help="idx files, as MNIST and Fashion-MNIST have them")
    kind.add_argument("source", type=Path)
    add_size(kind)
    add_making(kind, lambda args: idx_folder(args.source))
    kind = kinds.add_parser("torchvision", help="one of torchvision.datasets, by its name")
    kind.add_argument("source", help="CIFAR10, Flowers102, ...")
    kind.add_argument("--root", type=Path, required=True, help="where torchvision keeps its files")
    kind.add_argument("--download", action="store_true")
    add_size(kind)
    add_making(kind, lambda args: torchvision_dataset(args.source, args.root, args.download))
    add_video(kinds)
    kind = kinds.add_parser("verify", help="checksums, counts, and whether all samples decode")
    kind.add_argument("source", help="a folder, an fsspec address or x-{000..146}.tar")
    kind.add_argument("--split", help="one split (default: all)")
    kind.add_argument("--num-classes", type=positive_integer, help="labels must be below")
    kind.add_argument(
        "--allow-pipe", action="store_true", help="run the command of a pipe: address"
    )
    kind.add_argument("--video", action="store_true", help="videos, if no _info.json says so")
    add_common(kind)
    kind.set_defaults(run=check)
    return parser.parse_args(argv)


def prepared(args: argparse.Namespace) -> Preparation:
    """The preparation of the samples, with the options that the command has."""
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
    args = parse(argv)
    try:
        args.run(args)
    except KeyboardInterrupt:
        sys.exit("\nstopped; the same command goes on from here")
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        fail("make_shards", cut(error) or type(error).__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
