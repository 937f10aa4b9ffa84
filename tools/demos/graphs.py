"""Pictures of GKAT: what nodes of a motif attend to, and graph sketches.

    python tools/demos/graphs.py attention --output docs/motif.png   # about a minute
    python tools/demos/graphs.py sketch --output docs/graphots.png

The experiments of the paper are `vit-rpe graphs`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from tools.demos._graph_pictures import draw_attention, draw_sketches
from vit_rpe.cli.command_line import (
    Parser,
    fail,
    new_file,
    one_line_errors,
    positive_integer,
)
from vit_rpe.graph import RWGNK, GKATConv

try:
    from vit_rpe.experiments.graphs import motif_set
    from vit_rpe.experiments.graphs.fitting import Schedule, fit_graphs
    from vit_rpe.experiments.graphs.masks import Walked
    from vit_rpe.experiments.graphs.tables.motifs import MODELS
except ImportError as error:
    fail("demos/graphs", f"{error}; pip install vit_rpe[train,graph]")

MOTIF, MOTIF_NODES = "grid", 9


def attention(args: argparse.Namespace) -> float:
    """Train the paper's GKAT on graphs with a 3 x 3 grid, and draw where two nodes look."""
    pairs = (args.pairs, max(1, args.pairs // 3), 1)
    train, val, example = (
        Walked(motif_set(MOTIF, count, seed=args.seed + i), RWGNK())
        for i, count in enumerate(pairs)
    )
    torch.manual_seed(args.seed)
    model = MODELS["GKAT additive"]()
    fitted = fit_graphs(model, train, val, Schedule(0.01, args.epochs, args.epochs))
    print(f"{fitted.val:.1%} of {2 * pairs[1]} held-out graphs at epoch {fitted.epoch}")
    conv = model.layers[0]
    assert isinstance(conv, GKATConv)
    draw_attention(example.batch(torch.tensor([0])), MOTIF_NODES, conv, args.output)
    return fitted.val


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="demos/graphs", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("attention", help="train on graphs with a 3 x 3 grid").add_argument
    add("--pairs", type=positive_integer, default=384, help="of graphs to train on")
    add("--epochs", type=positive_integer, default=60)
    add("--seed", type=int, default=0)
    add("--output", type=new_file, default=Path("motif.png"))
    add = commands.add_parser("sketch", help="node embeddings of one graph").add_argument
    add("--output", type=new_file, default=Path("graphots.png"))
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    with one_line_errors("demos/graphs"):
        if args.command == "attention":
            attention(args)
        else:
            draw_sketches(args.output, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
