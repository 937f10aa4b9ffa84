"""The options of `vit-rpe evaluate`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..command_line import (
    READERS,
    command_parser,
    count,
    new_file,
    positive_integer,
    positive_number,
)
from .model import add_device, add_model, add_views

OF_THE_RUN = 0.0  # --val-fraction without a number


def parse(argv: Sequence[str] | None, text: str | None) -> argparse.Namespace:
    """Read the command line; `text` is its description."""
    parser = command_parser("evaluate", text)
    add = parser.add_argument
    add_model(parser)
    add("--data", required=True, help="shards: a folder, an address or a pattern")
    add("--split", help="default: val, or train with --val-fraction")
    add(
        "--val-fraction",
        type=_below_one,
        nargs="?",
        const=OF_THE_RUN,
        metavar="F",
        help="only the validation part of the split (default: F of the run)",
    )
    add("--map-classes", action="store_true", help="go by the names of classes, not their order")
    add("--img-size", type=_sizes, help="one resolution or several: 192,224 (default: the model's)")
    add("--batch-size", type=positive_integer, default=64, help="of one process (default: 64)")
    workers = "processes that read data (default: one for each core, at most 4)"
    add("--workers", type=count, default=READERS, help=workers)
    add_views(parser)
    add_device(parser)
    add("--output", type=Path, help="folder for CSV and JSON")
    add("--json", type=new_file, metavar="FILE", help="the printed figures as JSON")
    args = parser.parse_args(argv)
    if args.split is None:
        args.split = "val" if args.val_fraction is None else "train"
    return args


def _sizes(text: str) -> list[int]:
    return [positive_integer(part) for part in text.split(",")]


def _below_one(text: str) -> float:
    value = positive_number(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"wanted a number between 0 and 1, got {text!r}")
    return value
