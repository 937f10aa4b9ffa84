"""Draws masks of one small graph: the matrices, and what one node sees of the graph.

    python tools/figures/graph_masks.py --output docs/graphs.png

The first three are the paper's heat maps (Sec. 4.2): the adjacency matrix, the diffusion kernel
exp(Adj), and RWGNK for walks of 3 steps.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from vit_rpe.cli.command_line import Parser, one_line_errors
from vit_rpe.graph import (
    Diffusion,
    TreeExponential,
    WalkKernel,
    both_directions,
    random_walks,
    shortest_path_mask,
)
from vit_rpe.masks import Mask, Sparse
from vit_rpe.report import MARK, WEIGHTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUERY = 4


@dataclass
class Panel:
    """A mask, what it is called, and the edges to draw it on."""

    title: str
    mask: Mask
    edges: Tensor

    def matrix(self) -> Tensor:
        """Its weights, the largest of them 1."""
        matrix = self.mask.dense().detach().double()
        return matrix / matrix.max()


def example_edges() -> Tensor:
    """Two dense groups of nodes, a bridge between them, and a tail."""
    first = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 4), (2, 4)]
    second = [(6, 7), (6, 8), (7, 8), (7, 9), (8, 10), (9, 10), (6, 9)]
    rest = [(4, 5), (5, 6), (10, 11), (11, 12), (12, 13)]
    return both_directions(torch.tensor(first + second + rest).mT)


def spanning_tree(edges: Tensor) -> Tensor:
    """The edges by which a breadth-first search reaches new nodes."""
    reached, tree = {0}, []
    for u in (queue := [0]):
        for v in edges[1][edges[0] == u].tolist():
            if v not in reached:
                reached.add(v)
                queue.append(v)
                tree.append((u, v))
    return both_directions(torch.tensor(tree).mT)


def panels(walks: int = 50, seed: int = 0) -> list[Panel]:
    edges = example_edges()
    n = int(edges.max()) + 1
    drawn = random_walks(edges, num_nodes=n, num_walks=walks, num_steps=3, seed=seed)
    tree = spanning_tree(edges)
    near = shortest_path_mask(edges, num_nodes=n, f=lambda z: torch.exp(-0.7 * z))
    on_tree = TreeExponential(tree, num_nodes=n, a=-0.7)
    return [
        Panel("adjacency matrix", Sparse(edges, torch.ones(edges.shape[1]), n), edges),
        Panel("diffusion exp(Adj)", Diffusion(edges, num_nodes=n, kind="adjacency"), edges),
        Panel(f"RWGNK, 3 steps, alpha = 1\n{walks} walks a node", WalkKernel(drawn), edges),
        Panel("diffusion exp(-2 L)", Diffusion(edges, num_nodes=n, lam=2.0), edges),
        Panel("shortest paths\nexp(-0.7 distance)", near, edges),
        Panel("a spanning tree\nexp(-0.7 distance)", on_tree, tree),
    ]


def draw(output: str | Path, walks: int = 50, seed: int = 0) -> Path:
    """Draw the panels and return where the PNG is."""
    figure = _figure(panels(walks, seed))
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
    return path


def _figure(shown: list[Panel]) -> Figure:
    try:
        import networkx
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"drawing graphs needs {error.name}: pip install vit_rpe[graph,report]"
        ) from error

    # a square root: small weights stay visible beside large ones
    style: dict[str, Any] = {"cmap": WEIGHTS, "norm": PowerNorm(0.5, 0.0, 1.0)}
    plain = networkx.Graph(shown[0].edges.mT.tolist())
    place = networkx.kamada_kawai_layout(plain)
    figure = Figure(figsize=(2.7 * len(shown), 6.2), layout="constrained")
    axes = figure.subplots(2, len(shown))
    for column, panel in enumerate(shown):
        _draw_matrix(axes[0, column], panel, style)
        _draw_view(axes[1, column], panel, place, style)
    axes[0, 0].set_ylabel("query")
    bar = figure.colorbar(ScalarMappable(style["norm"], style["cmap"]), ax=axes, shrink=0.8)
    bar.set_label("weight / largest weight of the mask")
    return figure


def _draw_matrix(axes: Axes, panel: Panel, style: dict[str, Any]) -> None:
    axes.imshow(panel.matrix().clamp(min=0).numpy(), interpolation="nearest", **style)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel("key")
    axes.set_xticks([])
    axes.set_yticks([QUERY], [str(QUERY)], color=MARK)


def _draw_view(axes: Axes, panel: Panel, place: dict[int, Any], style: dict[str, Any]) -> None:
    """The graph, its nodes colored by what the marked one sees of them."""
    for u, v in panel.edges.mT.tolist():
        axes.plot(*zip(place[u], place[v], strict=True), color="#888888", linewidth=1, zorder=1)
    nodes = sorted(place)
    points = [place[node] for node in nodes]
    seen = panel.matrix()[QUERY, nodes].clamp(min=0).tolist()
    edge = [MARK if node == QUERY else "black" for node in nodes]
    width = [2.5 if node == QUERY else 0.7 for node in nodes]
    axes.scatter(*zip(*points, strict=True), c=seen, s=110, edgecolors=edge, linewidths=width,
                 zorder=2, **style)  # fmt: skip
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.axis("off")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        prog="figures/graph_masks", description="Draw masks of one small graph as a PNG."
    )
    parser.add_argument("--walks", type=int, default=50, help="from each node, for RWGNK")
    parser.add_argument("--seed", type=int, default=0, help="of the walks")
    parser.add_argument("--output", type=Path, default=Path("output/graphs.png"), metavar="FILE")
    args = parser.parse_args(argv)
    with one_line_errors("figures/graph_masks"):
        print(draw(args.output, args.walks, args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
