"""Write a model as a file for programs without this package: ONNX, or torch.export.

    vit-rpe export --checkpoint runs/quickstart --output model.onnx
    vit-rpe export runs/quickstart --output model.pt2 --img-size 12 --batch-size 1
    vit-rpe export --model vit_tiny_patch16_224 --pretrained --output vit.onnx

The ending of --output chooses: .onnx (pip install 'vit_rpe[export]') or .pt2, for
torch.export.load. The input is what `evaluate` shows the model: images (B, 3, H, W), or clips
(B, 3, T, H, W), resized, cropped and normalized; the output are logits (B, K). The names of the
classes and the preprocessing are in the file's metadata. The batch is open, unless --batch-size
fixes it.

The file is run on random inputs and compared with the model before it is written. Exit codes: 0
written, 1 the file would not say what the model says, 2 wrong input, or a model that cannot be
exported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vit_rpe.inference import FORMATS, ExportFailed, export, load_classifier
from vit_rpe.program import program

from .command_line import (
    DONE,
    FAILED,
    command_parser,
    new_file,
    one_line_errors,
    positive_integer,
    say_error,
)
from .options.model import add_model, model_source


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = parse(argv)
    name = program("export")
    with one_line_errors(name):
        classifier = load_classifier(
            model_source(args), img_size=args.img_size, num_frames=args.num_frames, device="cpu"
        )
        for text in classifier.warnings:
            print(f"{name}: warning: {text}", file=sys.stderr)
        try:
            comparison = export(classifier, args.output, args.batch_size)
        except ExportFailed as error:
            say_error(name, error)
            return FAILED
    size = args.output.stat().st_size / 1e6
    print(f"{classifier.title} is in {args.output}, {size:.1f} MB; its {comparison}")
    return DONE


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; a model may be given without --checkpoint."""
    parser = command_parser("export", __doc__)
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="the same as --checkpoint RUN")
    add_model(parser, required=False)
    add("--output", type=_written, required=True, metavar="FILE", help="a .onnx or .pt2 file")
    add("--img-size", type=positive_integer, help="resolution (default: the model's)")
    add("--num-frames", type=positive_integer, help="of a clip (default: the model's)")
    add("--batch-size", type=positive_integer, help="fixed (default: any)")
    args = parser.parse_args(argv)
    if sum(each is not None for each in (args.run, args.checkpoint, args.model)) != 1:
        parser.error("one model is required: RUN, --checkpoint or --model")
    args.checkpoint = args.checkpoint or args.run
    return args


def _written(text: str) -> Path:
    path = new_file(text)
    if path.suffix not in FORMATS:
        endings = ", ".join(FORMATS)
        raise argparse.ArgumentTypeError(f"the ending is one of {endings}, got {text!r}")
    return path
