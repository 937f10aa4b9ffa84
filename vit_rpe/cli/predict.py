"""Name what is on images and videos, with probabilities.

    vit-rpe predict photo.jpg --checkpoint runs/quickstart
    vit-rpe predict photos/ more.png --checkpoint runs/x --output found.csv --output found.png
    vit-rpe predict photo.jpg --model vit_tiny_patch16_224 --pretrained --top-k 5
    vit-rpe predict clip.mp4 --checkpoint runs/video --clips 4 --crops 3
    curl -s https://example.org/photo.jpg | vit-rpe predict - --checkpoint runs/x --format json
    find photos -name '*.jpg' | vit-rpe predict --files-from - --checkpoint runs/x

FILE is an image, a video, a folder of them (and the folders in it), or - for the bytes of one file
on standard input. A model of videos takes videos, folders of frames as videos, and images as clips
that stand still. A run means its best checkpoint, and the moving average of the weights where it
has one; images are prepared exactly as `evaluate` does it.

A table is printed, or what --format says; --output writes a file instead, by its ending: .csv,
.json, .txt (the table) or .png (a grid of the first 100 pictures, as the model saw them). A file
that cannot be read is named and counted on standard error, and the others are predicted; the exit
code is then 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from tqdm import tqdm

from vit_rpe.data.making import endings_in_words
from vit_rpe.files import LARGEST, atomic_write, read_regular
from vit_rpe.inference import (
    MOST,
    Classifier,
    Inputs,
    Prediction,
    find_inputs,
    load_classifier,
    predict,
)
from vit_rpe.messages import printable
from vit_rpe.program import program

from .command_line import DONE, WRONG, one_line_errors
from .options.model import model_source, video_options
from .options.predict import PRINTED, WRITTEN, parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = parse(argv, __doc__)
    with one_line_errors(program("predict")):
        return run(args)


def run(args: argparse.Namespace) -> int:
    """Predict and write; return WRONG if any file was bad."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("predictions are made by one process; start it without a launcher")
    classifier = classifier_for(args)
    inputs = find_inputs(given(args), classifier.videos is not None)
    if not inputs.found:
        raise ValueError(f"nothing to predict{_but(inputs)}")
    predictions = list(_told(_predicted(args, classifier, inputs), len(inputs.found)))
    _write(args, predictions)
    bad = sum(each.error is not None for each in predictions)
    if inputs.passed_over:
        _say(f"passed over: {endings_in_words(inputs.passed_over)}")
    if bad:
        _say(f"{bad} of {len(predictions)} files could not be read")
    return WRONG if bad else DONE


def classifier_for(args: argparse.Namespace) -> Classifier:
    """Load the model, and warn of what its user should know."""
    classifier = load_classifier(
        model_source(args),
        img_size=args.img_size,
        num_frames=args.num_frames,
        crop_pct=args.crop_pct,
        device=args.device,
        amp=args.amp,
        **video_options(args),
    )
    _ = classifier.ways  # a resolution that cannot be is an error before any file is read
    for text in classifier.warnings:
        _say(f"{program('predict')}: warning: {text}")
    return classifier


def given(args: argparse.Namespace) -> Iterator[str | bytes]:
    """Yield the paths on the command line and in a list, and the bytes on standard input."""
    for each in args.inputs:
        yield _standard_input() if each == "-" else each
    if args.files_from is not None:
        listed = _standard_input() if args.files_from == "-" else read_regular(args.files_from)
        yield from filter(None, map(os.fsdecode, listed.splitlines()))


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read(LARGEST + 1)
    if not data or len(data) > LARGEST:
        size = f"more than {LARGEST}" if data else "no"
        raise ValueError(f"standard input has {size} bytes")
    return data


def _predicted(
    args: argparse.Namespace, classifier: Classifier, inputs: Inputs
) -> Iterator[Prediction]:
    """Predict; only as many pictures are kept as are drawn."""
    drawn = MOST if any(path.suffix.lower() == ".png" for path in args.output) else 0
    yield from predict(
        classifier,
        inputs.found,
        top_k=args.top_k,
        batch_size=args.batch_size,
        workers=args.workers,
        pictures=drawn,
    )


def _told(predictions: Iterable[Prediction], total: int) -> Iterator[Prediction]:
    """Show progress where somebody looks, and name what is bad as soon as it is met."""
    with tqdm(predictions, total=total, unit="file", disable=None, leave=False) as shown:
        for each in shown:
            if each.error is not None:
                shown.write(f"bad: {printable(f'{each.file}: {each.error}')}", file=sys.stderr)
            yield each


def _write(args: argparse.Namespace, predictions: Sequence[Prediction]) -> None:
    if args.format is not None or not args.output:
        text = PRINTED[args.format or "table"](predictions)
        print(str(text).encode(errors="surrogateescape").decode(errors="replace"), end="")
    for path in args.output:
        content = WRITTEN[path.suffix.lower()](predictions)
        with atomic_write(path) as file:
            file.write(
                content.encode(errors="surrogateescape") if isinstance(content, str) else content
            )
        only = (
            f", of which {MOST} are drawn"
            if path.suffix == ".png" and len(predictions) > MOST
            else ""
        )
        _say(f"{path}: {len(predictions)} files{only}")


def _but(inputs: Inputs) -> str:
    """Say what there is instead of files that the model takes."""
    others = inputs.passed_over
    return f": there are only other files, {endings_in_words(others)}" if others else ": no files"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
