"""Draw clips as a model gets them: one row for each, frame by frame, with its class.

python tools/figures/clips.py data/moving-digits --split val --output clips.png
python tools/figures/clips.py data/mine --frames 16 --stride 4 --size 224 --augment rand-m9-n2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from vit_rpe.cli.command_line import described_parser, one_line_errors, positive_integer
from vit_rpe.data import Batch, Loader, Plan, Videos, open_shards


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = described_parser("figures/clips", __doc__)
    add = parser.add_argument
    add("data", help="shards of videos: a folder, an address or a pattern")
    add("--split", default="train")
    add("--output", type=Path, default=Path("clips.png"))
    add("--clips", type=positive_integer, default=6, help="rows")
    add("--frames", type=positive_integer, default=8)
    add("--stride", type=positive_integer, default=1)
    add("--size", type=positive_integer, default=64, help="side of a frame")
    add("--augment", help="as in training: plain, trivial or rand-mM-nN")
    add("--seed", type=int, default=0, help="of the choice of clips")
    return parser.parse_args(argv)


def one_batch(args: argparse.Namespace) -> tuple[Batch, list[str]]:
    """The clips, as bytes, and the names of their classes."""
    modality = Videos(args.frames, args.stride)
    shards = open_shards(args.data, args.split, endings=modality.endings)
    policy = None if args.augment in (None, "plain") else args.augment
    look = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "interpolation": "bilinear"}
    options = {**look, "auto_augment": policy} if args.augment else look
    transform = modality.transform(args.size, args.augment is not None, options)
    plan = Plan(shards.lengths, min(args.clips, shards.num_samples), seed=args.seed)
    (batch,) = Loader(shards, plan, transform, modality=modality).batches(0, 1)
    names = dict(enumerate(shards.classes))
    return batch, [names.get(label, str(label)) for label in batch.labels.tolist()]


def draw(batch: Batch, names: list[str], path: Path) -> None:
    from matplotlib.figure import Figure

    clips = batch.images.permute(0, 2, 3, 4, 1).numpy()  # (B, T, H, W, 3)
    rows, columns = clips.shape[:2]
    figure = Figure(figsize=(1.1 * columns, 1.32 * rows), layout="constrained")
    places: Any = figure.subplots(rows, columns, squeeze=False)
    for row, clip, name in zip(places, clips, names, strict=True):
        for place, frame in zip(row, clip, strict=True):
            place.imshow(np.clip(frame, 0, 1), interpolation="nearest")
            place.set_axis_off()
        row[0].set_title(name, loc="left", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    with one_line_errors("figures/clips"):
        draw(*one_batch(args), args.output)
    print(f"drawn: {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
