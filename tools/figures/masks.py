"""Draws masks: the whole matrix, and what one query sees on its grid.

python tools/figures/masks.py --grid 8 10 --output masks.png
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from vit_rpe.cli.command_line import Parser, one_line_errors
from vit_rpe.masks import BlockDiagonal, Bordered, Mask
from vit_rpe.masks.base import as_grid
from vit_rpe.report import ABSENT, MARK, WEIGHTS
from vit_rpe.rpe import DistanceRPE, ExponentialRPE, OffsetRPE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = 6
LARGEST = 1600


@dataclass
class Panel:
    """One mask and how to show it: the grids its tokens form, after `prefix` tokens of no grid."""

    title: str
    mask: Mask
    grids: list[tuple[int, int]]
    prefix: int = 0
    head: int = 0

    def matrix(self) -> Tensor:
        return self.mask.dense().detach()[self.head]

    def query(self) -> int:
        """The token in the middle of the last grid."""
        n1, n2 = self.grids[-1]
        before = self.prefix + sum(math.prod(grid) for grid in self.grids[:-1])
        return before + (n1 // 2) * n2 + n2 // 2


def draw_masks(grid: Sequence[int], output: str | Path) -> Path:
    """Draw one mask of each kind for an image of `grid` tokens, and return where the PNG is."""
    sides = as_grid(grid)
    if len(sides) != 2 or math.prod(sides) > LARGEST:
        raise ValueError(f"need a grid of two sides and at most {LARGEST} tokens, got {sides}")
    figure = _figure(_kinds(*sides), _heads(*sides), sides)
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
    return path


def _kinds(n1: int, n2: int) -> list[Panel]:
    """One mask of each kind, with weights between 0 and 1 that show what the kind can say."""
    grid = (n1, n2)
    packed = [(max(n1 // 2, 1), n2), (n1, max(n2 // 2, 1))]
    causal = ExponentialRPE(grid, 1, one_sided=(0,))
    return [
        Panel("OffsetRPE\none weight per offset", _oblique(grid)(), [grid]),
        Panel("DistanceRPE\none weight per L1 distance", _ring(grid)(), [grid]),
        Panel("ExponentialRPE\none rate per axis", _rates(ExponentialRPE(grid, 1))(), [grid]),
        Panel("ExponentialRPE\ncausal rows: one_sided=(0,)", _rates(causal)(), [grid]),
        Panel("Bordered\n2 prefix tokens", Bordered(_ring(grid)(), prefix=2), [grid], prefix=2),
        Panel(
            "BlockDiagonal\n2 packed grids", BlockDiagonal([_oblique(g)() for g in packed]), packed
        ),
    ]


def _heads(n1: int, n2: int) -> list[Panel]:
    """The start `init="decay"` of every head."""
    mask = OffsetRPE((n1, n2), HEADS, init="decay")()
    return [Panel(f"head {h}", mask, [(n1, n2)], head=h) for h in range(HEADS)]


def _oblique(grid: tuple[int, int]) -> OffsetRPE:
    """Keys up and to the right of the query, and no mirror image of them: a table may say that."""
    rpe = OffsetRPE(grid, 1)
    i, j = (torch.arange(1 - n, n) / max(n - 1, 1) for n in grid)
    with torch.no_grad():
        rpe.table.copy_(-12 * (i[:, None] + j - 0.1).square() - 3 * (i[:, None] - j - 0.4).square())
    return rpe


def _ring(grid: tuple[int, int]) -> DistanceRPE:
    """The neighbors at a distance of about a fifth of the grid."""
    rpe = DistanceRPE(grid, 1)
    distance = torch.linspace(0, 1, rpe.table.shape[-1])
    with torch.no_grad():
        rpe.table.copy_(-75 * (distance - 0.2).square())
    return rpe


def _rates(rpe: ExponentialRPE) -> ExponentialRPE:
    """Slow decay along the columns, fast along the rows."""
    with torch.no_grad():
        rpe.rate.copy_(torch.tensor([2.0, 6.0]) / torch.tensor(rpe.grid))
    return rpe


def _figure(kinds: list[Panel], heads: list[Panel], grid: tuple[int, ...]) -> Figure:
    """Two bands, kinds of masks and the heads of one, each with a row of matrices and one of views.

    All panels share one color scale, so that they can be compared.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "drawing masks needs matplotlib: pip install vit_rpe[report]"
        ) from error

    # a square root: small weights stay visible beside large ones
    norm = PowerNorm(0.5, 0.0, 1.0)
    cmap = colormaps[WEIGHTS].with_extremes(bad=ABSENT)
    style = {"cmap": cmap, "norm": norm, "interpolation": "nearest"}
    spacing = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.045)  # room for the arrows
    figure = Figure(figsize=(15, 11), layout=spacing)
    bands = figure.subfigures(2, 1, squeeze=False, hspace=0.03)[:, 0]
    size = f"an image of {grid[0]} x {grid[1]} tokens"
    titles = [f"Kinds of masks, {size}", f"The {HEADS} heads of OffsetRPE(init='decay'), {size}"]
    for band, title, panels in zip(bands, titles, (kinds, heads), strict=True):
        band.suptitle(title, fontsize=14, fontweight="bold")
        axes = band.subplots(2, len(panels), height_ratios=(1.0, 0.75))
        for column, panel in enumerate(panels):
            _draw_matrix(axes[0, column], panel, style)
            _draw_view(axes[1, column], panel, style)
        axes[0, 0].set_ylabel("query", labelpad=14)
        axes[1, 0].set_ylabel("what the marked\nquery sees")
        bar = band.colorbar(
            ScalarMappable(norm, cmap), ax=axes, shrink=0.8, pad=0.015, panchor=False, aspect=35
        )
        bar.set_label("weight (gray: exactly 0)")
    return figure


def _draw_matrix(axes: Axes, panel: Panel, style: dict[str, Any]) -> None:
    """The matrix, with a tick where each row of a grid begins: the blocks of a block-Toeplitz."""
    matrix = panel.matrix()
    length = len(matrix)
    axes.imshow(_shown(matrix), **style)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel("key")
    starts, begin = [], panel.prefix
    for n1, n2 in panel.grids:
        starts += [begin + row * n2 for row in range(n1)]
        begin += n1 * n2
    edges = [start - 0.5 for start in starts]
    axes.set_xticks(edges, [])
    axes.set_yticks(edges, [])
    axes.tick_params(length=2.5, color="#888888")
    query = panel.query()
    axes.annotate(
        "",
        (-0.5, query),
        (-0.5 - 0.08 * length, query),
        arrowprops={"arrowstyle": "-|>", "color": MARK, "linewidth": 1.5, "shrinkB": 0},
        annotation_clip=False,
    )


def _draw_view(axes: Axes, panel: Panel, style: dict[str, Any]) -> None:
    """The row of the marked query, laid out as its keys lie: prefix, then grid after grid."""
    row = panel.matrix()[panel.query()]
    prefix = [(panel.prefix, 1)] if panel.prefix else []
    parts = prefix + panel.grids
    height = max(n1 for n1, _ in parts)
    left, begin = 0, 0
    for n1, n2 in parts:
        tokens = row[begin : begin + n1 * n2].reshape(n1, n2)
        extent = (left - 0.5, left + n2 - 0.5, n1 - 0.5, -0.5)
        axes.imshow(_shown(tokens), extent=extent, **style)
        left, begin = left + n2 + 1, begin + n1 * n2
    n1, n2 = panel.grids[-1]
    axes.plot(left - 1 - n2 + n2 // 2, n1 // 2, "o", markersize=7, mfc="none", mec=MARK, mew=1.8)
    if len(parts) > 1:
        name, turn = ("prefix", 90) if prefix else ("another image", 0)
        n1, n2 = parts[0]
        axes.text((n2 - 1) / 2, n1 - 0.2, name, ha="center", va="top", fontsize=9, rotation=turn)
    axes.set_xlim(-0.5, left - 1.5)
    axes.set_ylim(height - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def _shown(weights: Tensor) -> np.ma.MaskedArray:
    """As an array; what is exactly 0 is left out and takes the color of absence."""
    return np.ma.masked_equal(weights.double().numpy(), 0.0)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="figures/masks", description="Draw masks of an image grid as a PNG.")
    parser.add_argument(
        "--grid", type=int, nargs=2, default=(8, 10), metavar=("ROWS", "COLUMNS"), help="tokens"
    )
    parser.add_argument("--output", type=Path, default=Path("output/masks.png"), metavar="FILE")
    args = parser.parse_args(argv)
    with one_line_errors("figures/masks"):
        print(draw_masks(args.grid, args.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
