"""The options of `vit-rpe predict`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vit_rpe.inference import Prediction, as_csv, as_json, as_png, as_table

from ..command_line import READERS, command_parser, count, new_file, positive_integer
from .model import add_device, add_model, add_views

Write = Callable[[Sequence[Prediction]], str | bytes]

PRINTED: Mapping[str, Write] = {"table": as_table, "csv": as_csv, "json": as_json}
WRITTEN: Mapping[str, Write] = {
    ".csv": as_csv,
    ".json": as_json,
    ".txt": as_table,
    ".png": as_png,
}


def parse(argv: Sequence[str] | None, text: str | None) -> argparse.Namespace:
    """Read the command line; `text` is its description."""
    parser = command_parser("predict", text)
    add = parser.add_argument
    add("inputs", nargs="*", metavar="FILE", help="an image, a video, a folder, or - for its bytes")
    add("--files-from", metavar="LIST", help="a file with a path in each line, or -")
    add_model(parser)
    add("--top-k", type=positive_integer, default=3, metavar="K", help="classes (default: 3)")
    add("--format", choices=tuple(PRINTED), help="what is printed (default: table)")
    add(
        "--output",
        type=_written,
        action="append",
        default=[],
        metavar="FILE",
        help=f"a file ({', '.join(WRITTEN)}) in place of what is printed; may be given several "
        "times",
    )
    add("--img-size", type=positive_integer, help="resolution (default: the model's)")
    add("--batch-size", type=positive_integer, default=64, help="default: 64")
    workers = "processes that read files (default: one for each core, at most 4)"
    add("--workers", type=count, default=READERS, help=workers)
    add_views(parser)
    add_device(parser)
    args = parser.parse_intermixed_args(argv)
    if not args.inputs and args.files_from is None:
        parser.error("nothing to predict: name an image, a video, a folder or -")
    if [*args.inputs, args.files_from].count("-") > 1:
        parser.error("standard input (-) can be read once")
    return args


def _written(text: str) -> Path:
    path = new_file(text)
    if path.suffix.lower() not in WRITTEN:
        endings = ", ".join(WRITTEN)
        raise argparse.ArgumentTypeError(f"the ending is one of {endings}, got {text!r}")
    return path
