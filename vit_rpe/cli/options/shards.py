"""The options of `vit-rpe shards`: one parser for each kind of source."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_rpe.data import DEFAULT_BAD_LIMIT
from vit_rpe.data.making import (
    ImagePreparation,
    Source,
    VideoPreparation,
    csv_file,
    digits,
    hold_out,
    idx_folder,
    image_folder,
    moving_digits,
    moving_pairs,
    torchvision_dataset,
    video_folder,
    video_table,
)

from ..command_line import (
    Parser,
    command_parser,
    count,
    fraction,
    old_spelling,
    positive_integer,
    share,
)

Origin = Callable[[argparse.Namespace], Mapping[str, Source]]

MOST_WORKERS = 512


def _processes(text: str) -> int:
    value = positive_integer(text)
    if value > MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"at most {MOST_WORKERS} processes, got {value}")
    return value


def _kind(kinds: argparse._SubParsersAction, name: str, text: str) -> Parser:
    return kinds.add_parser(name, help=text, description=text)


def _add_making(
    parser: argparse.ArgumentParser,
    origin: Origin,
    preparation: type[ImagePreparation] | type[VideoPreparation] = ImagePreparation,
) -> None:
    add = parser.add_argument
    add("output", type=Path, metavar="OUTPUT", help="folder for the shards")
    size = preparation.samples_per_shard
    add(
        "--samples-per-shard",
        type=positive_integer,
        default=size,
        metavar="N",
        help=f"samples of a shard (default: {size})",
    )
    add("--seed", type=count, default=0, metavar="N", help="of the order of samples (default: 0)")
    add("--keep-order", action="store_true", help="do not shuffle")
    _add_common(parser)
    parser.set_defaults(verify=False, origin=origin, preparation=preparation)


def _add_size(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    size = {"type": positive_integer, "dest": "size"}
    add("--img-size", **size, metavar="N", help="shorter side, re-encoded (default: bytes kept)")
    old_spelling(parser, "--size", **size)
    quality = ImagePreparation.quality
    add(
        "--quality",
        type=positive_integer,
        default=quality,
        metavar="Q",
        help=f"of re-encoded JPEGs (default: {quality})",
    )


def _add_split(parser: argparse.ArgumentParser) -> None:
    split = "name of the split, where there is no train/ or val/ (default: train)"
    parser.add_argument("--split", default="train", metavar="NAME", help=split)


def _add_root(parser: argparse.ArgumentParser) -> None:
    root = "folder of the paths in a table (default: that of the table)"
    parser.add_argument("--root", type=Path, metavar="DIR", help=root)


def _add_held_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--val-fraction",
        type=fraction,
        metavar="F",
        help="hold out this fraction of each class as the split val, by file names",
    )


def _held_out(args: argparse.Namespace, splits: Mapping[str, Source]) -> Mapping[str, Source]:
    return splits if args.val_fraction is None else hold_out(splits, args.val_fraction)


def _add_video(kinds: argparse._SubParsersAction) -> None:
    kind = _kind(kinds, "video", "class/video.mp4 or class/video/frame.jpg, or a .csv")
    kind.add_argument("source", type=Path, metavar="SOURCE", help="a folder, or a table (.csv)")
    _add_split(kind)
    _add_root(kind)
    add = kind.add_argument
    number: dict[str, Any] = {"type": positive_integer, "metavar": "N"}
    add("--clip-frames", **number, help="one sample for each clip of N frames (default: videos)")
    add("--min-frames", **number, default=1, help="shorter videos are bad (default: 1)")
    crf = VideoPreparation.crf
    quality = f"quality of re-encoded videos, x264's (default: {crf})"
    add("--crf", type=count, default=crf, metavar="Q", help=quality)
    _add_held_out(kind)
    _add_size(kind)
    _add_making(kind, _videos, VideoPreparation)
    kind = _kind(kinds, "moving-digits", "scikit-learn's digits in motion: tiny clips")
    _add_making(kind, lambda _: moving_digits(), VideoPreparation)
    kind = _kind(kinds, "moving-pairs", "pairs of Fashion-MNIST's items in motion")
    kind.add_argument("source", type=Path, metavar="SOURCE", help="folder of its idx files")
    kind.add_argument("--train", **number, default=12_000, help="clips to train on (12,000)")
    kind.add_argument("--test", **number, default=2_000, help="clips to test on (2,000)")
    _add_making(kind, lambda a: moving_pairs(a.source, a.train, a.test), VideoPreparation)


def _videos(args: argparse.Namespace) -> Mapping[str, Source]:
    if args.source.suffix.lower() == ".csv":
        return _held_out(args, video_table(args.source, args.root))
    return _held_out(args, video_folder(args.source, args.split))


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    workers = "processes (default: one for each core)"
    add("--workers", type=_processes, default=os.cpu_count() or 1, metavar="N", help=workers)
    bad = f"fraction of bad samples that is tolerated (default: {DEFAULT_BAD_LIMIT})"
    add("--max-bad", type=share, default=DEFAULT_BAD_LIMIT, metavar="F", help=bad)
    add("--quiet", action="store_true", help="no progress bar")


def parse(argv: Sequence[str] | None, text: str | None) -> argparse.Namespace:
    """Read the command line; `text` is its description."""
    parser = command_parser("shards", text)
    kinds = parser.add_subparsers(dest="kind", required=True, parser_class=Parser)
    kind = _kind(kinds, "digits", "scikit-learn's 8 x 8 digits, without a network")
    _add_size(kind)
    _add_making(kind, lambda _: digits())
    kind = _kind(kinds, "folder", "class/image.jpg, also below train/ and val/")
    kind.add_argument("source", type=Path, metavar="SOURCE", help="a folder of images")
    _add_split(kind)
    _add_held_out(kind)
    _add_size(kind)
    _add_making(kind, lambda args: _held_out(args, image_folder(args.source, args.split)))
    kind = _kind(kinds, "csv", "a table with the columns path, label and, if wanted, split")
    kind.add_argument("source", type=Path, metavar="SOURCE", help="the table")
    _add_root(kind)
    _add_held_out(kind)
    _add_size(kind)
    _add_making(kind, lambda args: _held_out(args, csv_file(args.source, args.root)))
    kind = _kind(kinds, "idx", "idx files, as MNIST and Fashion-MNIST have them")
    kind.add_argument("source", type=Path, metavar="SOURCE", help="folder of the idx files")
    _add_size(kind)
    _add_making(kind, lambda args: idx_folder(args.source))
    kind = _kind(kinds, "torchvision", "one of torchvision.datasets, by its name")
    kind.add_argument("source", metavar="NAME", help="CIFAR10, Flowers102, ...")
    root = "where torchvision keeps its files"
    kind.add_argument("--root", type=Path, required=True, metavar="DIR", help=root)
    kind.add_argument("--download", action="store_true", help="if they are not there")
    _add_size(kind)
    _add_making(kind, lambda args: torchvision_dataset(args.source, args.root, args.download))
    _add_video(kinds)
    kind = _kind(kinds, "verify", "checksums, counts, and whether all samples decode")
    source = "a folder, an fsspec address or x-{000..146}.tar"
    kind.add_argument("source", metavar="SOURCE", help=source)
    kind.add_argument("--split", metavar="NAME", help="one split (default: all)")
    labels = "labels must be below N (default: as _info.json says)"
    kind.add_argument("--num-classes", type=positive_integer, metavar="N", help=labels)
    kind.add_argument(
        "--allow-pipe", action="store_true", help="run the command of a pipe: address"
    )
    kind.add_argument("--video", action="store_true", help="videos, if no _info.json says so")
    _add_common(kind)
    kind.set_defaults(verify=True)
    return parser.parse_args(argv)
