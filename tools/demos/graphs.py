"""GKAT beside PyG's GAT: graphs with and without a motif, citation graphs, and graph sketches.

    python tools/demos/graphs.py motifs --plot motif.png   # under three minutes on two cores
    python tools/demos/graphs.py citation --only cora      # data in the folder VIT_RPE_DATA names
    python tools/demos/graphs.py sketch --output docs/graphots.png

Motifs are the paper's Sec. 5.1, with fewer graphs and epochs; citation graphs are those of its
appendix, on the public splits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from tools.common.command_line import (
    Parser,
    fail,
    new_file,
    one_line_errors,
    positive_integer,
)
from tools.common.graph_data import CITATION, DEGREES, citation, motif_set
from tools.demos._graph_pictures import draw_attention, draw_sketches
from vit_rpe.graph import (
    GKATGraphClassifier,
    GKATNodeClassifier,
    RandomWalkKernel,
    RandomWalkMask,
    walk_mask,
)

try:
    from torch_geometric.data import Batch
    from torch_geometric.nn import GATConv, global_mean_pool
except ModuleNotFoundError as error:
    fail("demos/graphs", f"{error}; pip install vit_rpe[graph]")

# Settings of the citation graphs: GAT's own for GAT; walks, and for Citeseer all of them, of GKAT
# were chosen by validation accuracy (docs/gkat.md).
WALKS = {"num_walks": 100, "num_steps": 3, "lam": 0.5}


@dataclass(frozen=True)
class Hyperparameters:
    lr: float = 0.005
    weight_decay: float = 5e-4
    out_heads: int = 1
    dropout: float = 0.6


GAT_SETTINGS = {
    "cora": Hyperparameters(),
    "citeseer": Hyperparameters(),
    "pubmed": Hyperparameters(0.01, 1e-3, 8),
}
GKAT_SETTINGS = GAT_SETTINGS | {"citeseer": Hyperparameters(0.01, 1e-3, dropout=0.7)}


# --- motifs ------------------------------------------------------------------------------------


class GATGraphClassifier(nn.Module):
    """PyG's GAT in the shape of the paper's motif model."""

    def __init__(self, hidden: int = 9, heads: int = 2):
        super().__init__()
        self.first = GATConv(DEGREES, hidden, heads)
        self.second = GATConv(heads * hidden, hidden, heads)
        self.out = nn.Linear(heads * hidden, 2)

    def forward(self, batch: Any) -> Tensor:
        x = F.elu(self.first(batch.x, batch.edge_index))
        x = F.elu(self.second(x, batch.edge_index))
        return self.out(global_mean_pool(x, batch.batch, batch.num_graphs))


class MotifGKAT(nn.Module):
    """The paper's GKAT for motifs: two layers of two heads, hidden 9, mean of the nodes."""

    def __init__(self, feature_map: str):
        super().__init__()
        self.model = GKATGraphClassifier(DEGREES, 9, 2, (2, 2), feature_map=feature_map)

    def forward(self, batch: Any) -> Tensor:
        mask = batch.mask_of_all
        return self.model(batch.x, batch=batch.batch, mask=mask, batch_size=batch.num_graphs)


def motifs(args: argparse.Namespace) -> dict[str, float]:
    """Accuracy of both models on graphs that they were not trained on."""
    transform = RandomWalkKernel(num_walks=50, num_steps=3)
    start = perf_counter()
    unseen = max(1, args.pairs // 3)
    train, test = (
        [_batch([transform(g) for g in graphs[i : i + 128]]) for i in range(0, len(graphs), 128)]
        for graphs in (motif_set(args.pairs, args.seed), motif_set(unseen, args.seed + 1))
    )
    print(f"{args.pairs} + {unseen} pairs of graphs: {perf_counter() - start:.0f} s")
    models: dict[str, Callable[[], nn.Module]] = {
        "GKAT": lambda: MotifGKAT(args.feature_map),
        "GAT": GATGraphClassifier,
    }
    accuracy = {}
    trained = {}
    for name, make in models.items():
        start = perf_counter()
        torch.manual_seed(args.seed)
        trained[name] = _fit(make(), train, args.epochs)
        accuracy[name] = _graph_accuracy(trained[name], test)
        size = sum(p.numel() for p in trained[name].parameters())
        print(f"{name:5s} {accuracy[name]:.1%}  ({size} parameters, "
              f"{args.epochs} epochs, {perf_counter() - start:.0f} s)", flush=True)  # fmt: skip
    if args.plot:
        example = next(g for g in motif_set(1, args.seed + 2) if g.y == 1)
        mask = walk_mask(transform(example))
        conv = trained["GKAT"].model.body.convs[0]  # type: ignore[union-attr]
        draw_attention(example, conv, mask, args.plot)
    return accuracy


def _batch(graphs: list[Any]) -> Any:
    batch = Batch.from_data_list(graphs)
    batch.mask_of_all = walk_mask(batch)  # type: ignore[attr-defined]
    return batch


def _fit(model: nn.Module, batches: list[Any], epochs: int) -> nn.Module:
    steps = epochs * len(batches)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        batch = batches[step % len(batches)]
        loss = F.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def _graph_accuracy(model: nn.Module, batches: list[Any]) -> float:
    right = sum(int((model(batch).argmax(1) == batch.y).sum()) for batch in batches)
    return right / sum(batch.num_graphs for batch in batches)


# --- citation graphs ---------------------------------------------------------------------------


class GATNodeClassifier(nn.Module):
    """PyG's GAT with the recipe of its paper."""

    def __init__(self, channels: int, classes: int, out_heads: int):
        super().__init__()
        self.first = GATConv(channels, 8, 8, dropout=0.6)
        self.second = GATConv(64, classes, out_heads, concat=False, dropout=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(F.dropout(x, 0.6, self.training), edge_index))
        return self.second(F.dropout(x, 0.6, self.training), edge_index)


def citation_accuracy(
    name: str, model_name: str, seed: int, epochs: int, feature_map: str
) -> dict[str, float]:
    """Validation and test accuracy at the epoch of the best validation accuracy."""
    data = citation(name)
    x, y, edges = data["x"], data["y"], data["edge_index"]
    torch.manual_seed(seed)
    classes = int(y.max()) + 1
    chosen = (GAT_SETTINGS if model_name == "GAT" else GKAT_SETTINGS)[name]
    call: Callable[[], Tensor]
    if model_name == "GAT":
        model: nn.Module = GATNodeClassifier(x.shape[1], classes, chosen.out_heads)
        call = lambda: model(x, edges)  # noqa: E731
    else:
        mask = RandomWalkMask(**WALKS, seed=seed)(edges, num_nodes=len(x))
        model = GKATNodeClassifier(
            x.shape[1], 8, classes, out_heads=chosen.out_heads, dropout=chosen.dropout,
            feature_map=feature_map,
        )  # fmt: skip
        call = lambda: model(x, mask=mask)  # noqa: E731
    optimizer = torch.optim.Adam(model.parameters(), lr=chosen.lr, weight_decay=chosen.weight_decay)
    best = {"val": 0.0, "test": 0.0, "loss": float("inf"), "epoch": 0}
    for epoch in range(epochs):
        model.train()
        loss = F.cross_entropy(call()[data["train"]], y[data["train"]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = max(best, _evaluate(model, call, data, epoch), key=lambda b: (b["val"], -b["loss"]))
    return best


@torch.no_grad()
def _evaluate(
    model: nn.Module, call: Callable[[], Tensor], data: dict[str, Any], epoch: int
) -> dict[str, float]:
    model.eval()
    out, y = call(), data["y"]
    right = {
        s: float((out[data[s]].argmax(1) == y[data[s]]).float().mean()) for s in ("val", "test")
    }
    return {
        **right,
        "loss": float(F.cross_entropy(out[data["val"]], y[data["val"]])),
        "epoch": epoch,
    }


def citation_table(args: argparse.Namespace) -> dict[str, Any]:
    """Mean and deviation over the seeds; what a file of --json has already is kept."""
    results: dict[str, Any] = {}
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    for name in args.only:
        for model in args.models:
            runs = results.setdefault(f"{name} {model}", {})
            for seed in range(args.seed, args.seed + args.seeds):
                start = perf_counter()
                if str(seed) not in runs:
                    run = citation_accuracy(name, model, seed, args.epochs, args.feature_map)
                    runs[str(seed)] = {**run, "seconds": perf_counter() - start}
                    if args.json:
                        args.json.write_text(json.dumps(results, indent=1) + "\n")
            tests = [100 * run["test"] for run in runs.values()]
            spread = f" +- {stdev(tests):.1f}" if len(tests) > 1 else ""
            took = mean(run["seconds"] for run in runs.values())
            print(f"{name:9s} {model:5s} {mean(tests):.1f}{spread}  "
                  f"({len(tests)} seeds, {took:.0f} s each)", flush=True)  # fmt: skip
    return results


# --- command line ------------------------------------------------------------------------------


def _names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(known)}")
        return names

    return parse


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="demos/graphs", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("motifs", help="graphs with and without a 3 x 3 grid").add_argument
    add("--pairs", type=positive_integer, default=384, help="of graphs to train on")
    add("--epochs", type=positive_integer, default=60)
    add("--feature-map", default="softmax", help="of GKAT")
    add("--seed", type=int, default=0)
    add("--plot", type=new_file, help="draw one graph and its attention into this PNG")
    add = commands.add_parser("citation", help="cora, citeseer, pubmed").add_argument
    add("--only", type=_names(CITATION), default=list(CITATION))
    add("--models", type=_names(("GKAT", "GAT")), default=["GKAT", "GAT"])
    add("--epochs", type=positive_integer, default=200)
    add("--seeds", type=positive_integer, default=3)
    add("--seed", type=int, default=0, help="the first of them")
    add("--feature-map", default="additive", help="of GKAT")
    add("--json", type=new_file, help="keep results in this file and go on from it")
    add = commands.add_parser("sketch", help="node embeddings of one graph").add_argument
    add("--output", type=new_file, default=Path("graphots.png"))
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    with one_line_errors("demos/graphs"):
        if args.command == "motifs":
            motifs(args)
        elif args.command == "citation":
            citation_table(args)
        else:
            draw_sketches(args.output, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
