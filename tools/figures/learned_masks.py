"""Draws the masks that a model has learned, of every layer and head, and prints how far each sees.

python tools/figures/learned_masks.py runs/quickstart --output learned_masks.png

A panel has a weight for each offset of a key from its query, over the largest of its head. The
range is the mean distance of the keys, in tokens along the grid, as the mask weighs them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from vit_rpe.cli.command_line import Parser, one_line_errors
from vit_rpe.extras import import_extra
from vit_rpe.files import atomic_write
from vit_rpe.masks import Mask
from vit_rpe.report import ABSENT, WEIGHTS
from vit_rpe.training import find_model, load_model

LARGEST = 1600


@dataclass(frozen=True)
class LayerMasks:
    """The masks of one layer: weights by offset, (heads, 2 n_1 - 1, 2 n_2 - 1), and ranges."""

    offsets: Tensor
    ranges: list[float]


@torch.no_grad()
def learned_masks(model: nn.Module) -> list[LayerMasks]:
    """Return the masks of all layers of an image model that have one."""
    found: list[LayerMasks] = []
    for layer in model.modules():
        rpe: Any = getattr(layer, "rpe", None)
        if rpe is None or not hasattr(rpe, "grid"):
            continue
        grid = tuple(rpe.grid)
        if len(grid) != 2 or prod(grid) > LARGEST:
            raise ValueError(f"masks of a {grid} grid: two sides of at most {LARGEST} tokens")
        mask: Mask = rpe()
        weights = mask.dense().double()
        found.append(LayerMasks(by_offset(weights, grid), mean_distance(weights, grid).tolist()))
    if not found:
        raise ValueError("the model has no masks to draw")
    return found


def by_offset(weights: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the weight of each offset, query minus key, of masks (heads, L, L) on a grid."""
    rows, columns = grid
    i, j = _places(grid)
    i, j = i[:, None] - i + rows - 1, j[:, None] - j + columns - 1
    table = torch.full((len(weights), 2 * rows - 1, 2 * columns - 1), torch.nan).double()
    table[:, i, j] = weights
    return table


def mean_distance(weights: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the mean distance of the keys as they are weighed, over all queries, (heads,)."""
    i, j = _places(grid)
    distance = (i[:, None] - i).abs() + (j[:, None] - j).abs()
    return ((weights * distance).sum(-1) / weights.sum(-1)).mean(-1)


def _places(grid: Sequence[int]) -> tuple[Tensor, Tensor]:
    cells = torch.cartesian_prod(*(torch.arange(side) for side in grid))
    return cells[:, 0], cells[:, 1]


def draw(layers: list[LayerMasks], path: Path, title: str) -> None:
    """Draw a row of panels for each layer."""
    figures = import_extra("matplotlib.figure", "report", "drawing masks")
    colors = import_extra("matplotlib.colors", "report", "drawing masks")
    heads = max(len(layer.ranges) for layer in layers)
    size = (1.9 * heads + 1, 2.1 * len(layers) + 0.6)
    figure = figures.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(layers), heads, squeeze=False)
    norm = colors.LogNorm(1e-3, 1.0, clip=True)
    image = None
    for number, (row, layer) in enumerate(zip(axes, layers, strict=True)):
        for head, (each, weights) in enumerate(zip(row, layer.offsets, strict=True)):
            each.set_facecolor(ABSENT)
            image = each.imshow(_shown(weights), cmap=WEIGHTS, norm=norm)
            each.set_title(f"head {head}, range {layer.ranges[head]:.1f}", fontsize=8)
            each.set_xticks([])
            each.set_yticks([])
        row[0].set_ylabel(f"layer {number}")
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("weight over the largest of the head")
    figure.suptitle(title, fontsize=10)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=120, format="png")


def _shown(weights: Tensor) -> NDArray[Any]:
    return np.ma.masked_less_equal((weights / weights.max()).numpy(), 0.0)


def table(layers: list[LayerMasks], even: float) -> str:
    """Return the ranges as Markdown; `even` is that of a mask of ones."""
    heads = max(len(layer.ranges) for layer in layers)
    lines = [f"| layer | {' | '.join(f'head {head}' for head in range(heads))} |"]
    lines.append("|" + "---|" * (heads + 1))
    for number, layer in enumerate(layers):
        lines.append(f"| {number} | {' | '.join(f'{each:.2f}' for each in layer.ranges)} |")
    return "\n".join([*lines, "", f"Without a mask the range is {even:.2f} tokens."])


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="figures/learned_masks", description="Draw the masks of a trained model.")
    parser.add_argument("model", help="a run, or a folder with model.safetensors")
    parser.add_argument("--no-ema", dest="ema", action="store_false", help="weights, not average")
    parser.add_argument("--output", type=Path, default=Path("output/learned_masks.png"))
    args = parser.parse_args(argv)
    with one_line_errors("figures/learned_masks"):
        model: Any = load_model(find_model(args.model, args.ema))[1]
        layers = learned_masks(model)
        grid = model.patch_embed.grid_size
        even = mean_distance(torch.ones(1, prod(grid), prod(grid)), grid).item()
        draw(layers, args.output, f"{args.model}: weights by offset, query minus key")
        print(table(layers, even))
        print(args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
