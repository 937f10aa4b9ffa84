"""One layer of GKAT beside GKAT-0, a dense GAT layer and PyG's GATConv (paper, Table 3).

    python tools/bench/gkat.py --json gkat.json          # sizes of the motif and citation graphs
    python tools/bench/gkat.py --only citeseer
    python tools/bench/gkat.py --only pubmed,batch --sparse   # beside PyG's GATConv only
    python tools/bench/gkat.py --million      # 1,000,000 nodes, 5,000,000 edges both ways

One head of 16 channels, 16 channels in; `8 x 8` is eight heads of 8. The mask (20 walks of 3 steps
from each node) is made before: GKATConv gets Psi, GKAT-0 the dense matrix, dense GAT the dense
adjacency matrix. Memory is the peak of one training step above what was there. Citation graphs are
read from the folder that VIT_RPE_DATA names; without it a random graph of their size stands in.
`batch` are 32 motif graphs in one batch, as PyG makes it.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from tools.bench._graph_cases import random_graph
from tools.bench.harness import (
    add_common,
    aligned,
    bench_parser,
    chosen,
    environment,
    exit_code,
    in_turns,
    judge,
    number,
    parsed,
    peak_mb,
    use_threads,
    verdict,
    write_report,
)
from vit_rpe.cli.command_line import fail, one_line_errors, positive_integer
from vit_rpe.experiments.graphs import citation, motif_set
from vit_rpe.graph import RWGNK, GKATConv, WalkKernel, random_walks
from vit_rpe.graph.gkat import EXACT_NODES
from vit_rpe.masks import Dense, Mask

try:
    from torch_geometric.nn import DenseGATConv, GATConv
except ModuleNotFoundError as error:
    fail("bench/gkat", f"{error}; pip install vit_rpe[graph]")

CHANNELS = 16
SIZES = {"motif": 109, "batch": 3_266, "citeseer": 3_327, "pubmed": 19_717}
# dense GAT / GKATConv in time, GKATConv / GKAT-0 in memory
BARS = {"citeseer": (5.1, 0.18), "pubmed": (9.5, 0.07)}
OURS, EXPLICIT, DENSE = "GKATConv m=16", "GKAT-0", "dense GAT"
ADDITIVE, EXACT, GAT, WIDE = "GKATConv additive", "GKATConv exact", "PyG GATConv", " 8 x 8"
# times of a training step / those of PyG's GATConv, at most
SPARSE_BARS = {
    "pubmed": [(ADDITIVE, GAT, 2.0), (ADDITIVE + WIDE, GAT + WIDE, 2.2), (OURS, GAT, 12.0)],
    "batch": [(EXACT, GAT, 2.0)],
}
MILLION, MILLION_SECONDS, MILLION_GB = 1_000_000, 20.0, 4.0


def graph(name: str) -> tuple[Tensor, tuple[int, ...], str]:
    """edge_index, the numbers of nodes of its graphs, and where they are from."""
    if name in ("motif", "batch"):
        batch = motif_set("grid", 16, 0).batch(torch.arange(1 if name == "motif" else 32))
        sizes = tuple(batch.ptr.diff().tolist())
        return batch.edge_index, sizes, "base graphs with and without a 3 x 3 grid"
    if os.environ.get("VIT_RPE_DATA"):
        task = citation(name)
        return task.edge_index, (task.num_nodes,), "the citation graph"
    return random_graph(SIZES[name]), (SIZES[name],), "a random graph of its size"


Layers = dict[str, tuple[nn.Module, Callable[..., Tensor]]]


def contestants(edges: Tensor, sizes: tuple[int, ...], sparse: bool = False) -> Layers:
    """Layers, and how each is called on x (L, channels); `sparse`: none with a whole matrix."""
    mask = RWGNK()(edges, num_nodes=sum(sizes)).in_parts(sizes)
    c, small = CHANNELS, max(sizes) <= EXACT_NODES

    def ours(heads: int = 1, width: int = c, **options: Any) -> tuple[nn.Module, Callable]:
        conv = GKATConv(c, width, heads, bias=False, **options)
        return conv, lambda x: conv(x, mask=mask)

    def gat(heads: int = 1, width: int = c) -> tuple[nn.Module, Callable]:
        conv = GATConv(c, width, heads)
        return conv, lambda x: conv(x, edges)

    layers: Layers = {
        OURS: ours(num_features=16, exact_kernel=False),
        "GKATConv ReLU": ours(feature_map="relu"),
        ADDITIVE: ours(feature_map="additive"),
        ADDITIVE + WIDE: ours(8, 8, feature_map="additive"),
        GAT: gat(),
        GAT + WIDE: gat(8, 8),
    }
    if small:
        layers[EXACT] = ours(exact_kernel=True)
        layers[EXACT + WIDE] = ours(8, 8, exact_kernel=True)
    if not sparse and len(sizes) == 1:
        layers["GKATConv m=256"] = ours(num_features=256, exact_kernel=False)
        layers |= _dense_layers(edges, mask)
    return layers


def _dense_layers(edges: Tensor, mask: Mask) -> Layers:
    n, c = mask.length, CHANNELS
    step = max(1, (64 << 20) // n)
    matrix = torch.cat([mask.rows(i, min(i + step, n)).float() for i in range(0, n, step)])
    adjacency = torch.zeros(1, n, n)
    adjacency[0, edges[0], edges[1]] = 1.0
    dense = Dense(matrix, nonnegative=True)
    explicit, gat = GKATConv(c, c, bias=False, exact_kernel=True), DenseGATConv(c, c)
    return {
        EXPLICIT: (explicit, lambda x: explicit(x, mask=dense)),
        DENSE: (gat, lambda x: gat(x[None], adjacency)[0]),
    }


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(args.seed)
    edges, sizes, source = graph(name)
    n = sum(sizes)
    x, layers = torch.randn(n, CHANNELS), contestants(edges, sizes, args.sparse)
    calls: dict[str, Callable[[], object]] = {}
    for key, (layer, call) in layers.items():
        calls[f"{key}|train"] = lambda layer=layer, call=call: _step(layer, call, x)
        calls[f"{key}|infer"] = lambda call=call: _infer(call, x)
    memory = {key: peak_mb(calls[f"{key}|train"], "cpu") for key in layers}
    times = in_turns(calls, args.seconds, "cpu", args.seed, fewest=3, clock=_clock(args))
    rows = {
        key: {
            "train_ms": 1e3 * median(times[f"{key}|train"]),
            "infer_ms": 1e3 * median(times[f"{key}|infer"]),
            "peak_mb": memory[key],
        }
        for key in layers
    }
    visits = RWGNK()(edges, num_nodes=n).visits.pattern.num_entries
    return {"graph": name, "nodes": n, "edges": edges.shape[1], "source": source,
            "entries_of_psi": visits, "layers": rows}  # fmt: skip


def _step(layer: nn.Module, call: Callable[..., Tensor], x: Tensor) -> None:
    layer.zero_grad()
    x = x.detach().requires_grad_()
    call(x).square().mean().backward()


@torch.no_grad()
def _infer(call: Callable[..., Tensor], x: Tensor) -> Tensor:
    return call(x)


def bars(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows, name = result["layers"], result["graph"]
    judged = []
    for ours, theirs, bar in SPARSE_BARS.get(name, []):
        ratio = rows[ours]["train_ms"] / rows[theirs]["train_ms"]
        aim = f"{name}: {ours} / {theirs}, time to train, at most"
        judged.append(judge(aim, ratio, at_most=bar))
    if name not in BARS or DENSE not in rows:
        return judged
    faster, smaller = BARS[name]
    for what in ("train", "infer"):
        ratio = rows[DENSE][f"{what}_ms"] / rows[OURS][f"{what}_ms"]
        aim = f"{result['graph']}: {DENSE} / {OURS}, time to {what}, at least"
        judged.append(judge(aim, ratio, at_least=faster))
    if rows[OURS]["peak_mb"] is not None and rows[EXPLICIT]["peak_mb"]:
        ratio = rows[OURS]["peak_mb"] / rows[EXPLICIT]["peak_mb"]
        aim = f"{result['graph']}: {OURS} / {EXPLICIT}, memory, at most"
        judged.append(judge(aim, ratio, at_most=smaller))
    return judged


def table(result: dict[str, Any]) -> str:
    title = (
        f"{result['graph']}: {result['nodes']:,} nodes, {result['edges']:,} edges, "
        f"{result['entries_of_psi']:,} entries of Psi ({result['source']})"
    )
    own = result["layers"][OURS]
    rows = [["layer", "train ms", "x", "inference ms", "x", "peak MB"]]
    for name, row in result["layers"].items():
        train, infer = row["train_ms"], row["infer_ms"]
        rows.append([name, number(train), number(train / own["train_ms"]), number(infer),
                     number(infer / own["infer_ms"]), number(row["peak_mb"])])  # fmt: skip
    return f"{title}\n{aligned(rows)}\n"


def million(
    nodes: int, seed: int, feature_map: str, clock: Callable[[], float] = perf_counter
) -> dict[str, Any]:
    """20 walks of 3 steps from each of so many nodes, and one layer, forward and backward."""
    torch.manual_seed(seed)
    edges = random_graph(2 * nodes)  # five neighbours a node and twice the nodes: 5 edges a node
    edges = (edges % nodes)[:, (edges[0] % nodes) != (edges[1] % nodes)]
    x = torch.randn(nodes, CHANNELS, requires_grad=True)
    start = clock()
    marks = {}

    def mark(name: str) -> None:
        marks[name] = clock() - start
        print(f"{name:10s} {marks[name]:7.1f} s  {_peak_gb():.2f} GB", flush=True)

    walks = random_walks(edges, num_nodes=nodes, num_walks=20, num_steps=3, seed=seed)
    mask = WalkKernel(walks)
    mark("mask")
    conv = GKATConv(CHANNELS, CHANNELS, feature_map=feature_map, num_features=CHANNELS)
    out = conv(x, mask=mask)
    mark("forward")
    out.square().mean().backward()
    mark("backward")
    assert x.grad is not None and bool(torch.isfinite(x.grad).all())
    result = {
        "nodes": nodes, "edges": edges.shape[1] // 2, "feature_map": feature_map,
        "seconds": marks, "peak_gb": _peak_gb(),
        "entries_of_psi": mask.visits.pattern.num_entries, "bars": [],
    }  # fmt: skip
    if nodes == MILLION and feature_map == "additive":
        took, peak = marks["backward"], result["peak_gb"]
        result["bars"] = [
            judge("a million nodes: seconds with the mask, at most", took, at_most=MILLION_SECONDS),
            judge("a million nodes: peak GB, at most", peak, at_most=MILLION_GB),
        ]
    return result


def _peak_gb() -> float:
    """Of the process since it began, the interpreter and torch included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = bench_parser("gkat", __doc__)
    add = parser.add_argument
    add("--only", type=lambda t: chosen(t, list(SIZES)), help="(all; quick: motif)")
    add("--million", action="store_true", help="the large graph instead")
    add("--nodes", type=positive_integer, default=MILLION, help="of the large graph")
    add("--feature-map", default="additive", help="on the large graph")
    add("--cpu-time", action="store_true", help="fair on a busy machine, with --threads 1")
    add("--sparse", action="store_true", help="leave out what forms a whole matrix, and m = 256")
    add_common(
        parser,
        quick="the smallest graph, for some seconds",
        seconds="for the timed rounds of a graph (20; quick: 0.5)",
        devices=("cpu",),
    )
    args = parsed(parser, argv)
    args.only = args.only or list(SIZES)[: 1 if args.quick else None]
    args.seconds = args.seconds or (0.5 if args.quick else 20.0)
    return args


def _clock(args: argparse.Namespace) -> Callable[[], float]:
    return process_time if args.cpu_time else perf_counter


def _told(judged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for bar in judged:
        print(f"  {bar['aim']} {bar['bar']:g}: {bar['measured']:.3g}, {verdict(bar)}")
    return judged


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    use_threads(args.threads)
    report: dict[str, Any] = environment("cpu")
    judged: list[dict[str, Any]] = []
    if args.million:
        report["million"] = million(args.nodes, args.seed, args.feature_map, _clock(args))
        judged = _told(report["million"]["bars"])
    else:
        report["cases"] = []
        for name in args.only:
            with one_line_errors("bench/gkat"):
                result = measure(name, args)
            print(table(result), flush=True)
            result["bars"] = bars(result)
            judged += _told(result["bars"])
            report["cases"].append(result)
    write_report(args.json, report)
    return exit_code(judged)


if __name__ == "__main__":
    sys.exit(main())
