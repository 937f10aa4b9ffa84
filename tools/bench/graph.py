"""Graph masks beside brute force, scipy's expm_multiply and a networkx walk loop.

    python tools/bench/graph.py --json graphs.json --plot docs/graphs_bench.png
    python tools/bench/graph.py --only diffusion --nodes 5000,20000
    python tools/bench/graph.py --only walks --json graphs.json --resume   # a piece at a time
    python tools/bench/graph.py --quick

Every contestant of a case has the same graph and columns; contestants take turns, and medians are
compared within one run. Brute force makes the matrix and multiplies by it.
Growth exponents are least-squares slopes of log time over log(nodes + edges), judged where all
graphs have 4,000 nodes or more. With `--resume`, cases that the JSON file has are kept, and those
that it lacks are measured and added.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from tools.bench._graph_cases import BARS, FAMILIES, Case
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
    slope,
    try_once,
    use_threads,
    verdict,
    write_report,
)
from vit_rpe.cli.command_line import fail, new_file, positive_number

NODES = (5_000, 10_000, 20_000, 40_000, 80_000)
LEAST_NODES = 4_000  # below, overheads hide how the work grows
MOST_GROWTH = 1.15


def measure(family: str, nodes: int, args: argparse.Namespace) -> dict[str, Any]:
    """All contestants of one family on one graph: medians, and ratios to the mask itself."""
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    case: Case = FAMILIES[family](nodes)
    rows: dict[str, dict[str, Any]] = {name: {"ms": None, "ratio": None} for name in case.calls}
    calls: dict[str, Callable[[], object]] = {}
    for name, call in case.calls.items():
        if try_once(call, args.limit, args.device):
            calls[name] = call
    times = in_turns(calls, args.seconds, args.device, args.seed, fewest=3)
    for name, samples in times.items():
        rows[name]["ms"] = 1e3 * median(samples)
    for row in rows.values():
        if row["ms"] and rows[case.mask]["ms"]:
            row["ratio"] = row["ms"] / rows[case.mask]["ms"]
    result = {
        "family": family,
        "asked": nodes,
        "nodes": case.nodes,
        "edges": case.edges,
        "columns": case.columns,
    }
    rounds = max(map(len, times.values()), default=0)
    return {**result, "note": case.note, "mask": case.mask, "rounds": rounds, "contestants": rows}


def kept_cases(file: Path) -> list[dict[str, Any]]:
    """The cases of an earlier piece of the same run, none if there is no file yet."""
    if not file.exists():
        return []
    try:
        return [case for case in json.loads(file.read_text())["cases"] if case["asked"]]
    except (ValueError, KeyError, TypeError) as error:
        fail("bench/graph", f"{file} is no report of this tool: {error!r}")


def growth(results: list[dict[str, Any]]) -> dict[str, float]:
    """The exponent of each contestant that was measured at three sizes or more."""
    points: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        for name, row in result["contestants"].items():
            if row["ms"]:
                size = log(result["nodes"] + result["edges"])
                points.setdefault(f"{result['family']}: {name}", []).append((size, log(row["ms"])))
    return {name: slope(places) for name, places in points.items() if len(places) >= 3}


def bars(results: list[dict[str, Any]], exponents: dict[str, float]) -> list[dict[str, Any]]:
    """What was aimed at and what was measured, where it was."""
    judged = []
    for bar in BARS:
        for result in results:
            row = result["contestants"].get(bar.rival, {})
            if result["family"] == bar.family and result["nodes"] == bar.nodes and row.get("ratio"):
                aim = f"{bar.family}, {bar.nodes:,} nodes: {bar.rival} / {result['mask']}"
                judged.append(judge(aim, row["ratio"], at_least=bar.ratio))
    small = {result["family"] for result in results if result["nodes"] < LEAST_NODES}
    masks = {f"{r['family']}: {r['mask']}" for r in results if r["family"] not in small}
    for name in sorted(masks & set(exponents)):
        judged.append(judge(f"growth of {name}", exponents[name], at_most=MOST_GROWTH))
    return judged


# --- what is shown -----------------------------------------------------------------------------


def case_table(result: dict[str, Any]) -> str:
    columns = f", {result['columns']} columns" if result["columns"] else ""
    title = (
        f"{result['family']}: {result['nodes']:,} nodes, {result['edges']:,} edges{columns}, "
        f"{result['note']}  ({result['rounds']} rounds)"
    )
    rows = [["contestant", "ms", f"/ {result['mask']}"]]
    for name, row in result["contestants"].items():
        rows.append([name, number(row["ms"]), number(row["ratio"])])
    return f"{title}\n{aligned(rows)}\n"


def summary(exponents: dict[str, float], judged: list[dict[str, Any]]) -> str:
    rows = [["growth with nodes + edges", "exponent"]]
    rows += [[name, f"{value:.2f}"] for name, value in exponents.items()]
    goals = [["bar", "aimed at", "measured", "note"]]
    for goal in judged:
        goals.append([goal["aim"], f"{goal['bar']:g}", f"{goal['measured']:.2f}", verdict(goal)])
    tables = [aligned(table) for table in (rows, goals) if len(table) > 1]
    return "\n\n".join(tables)


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """One panel for each family: time against nodes + edges."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    families = list(dict.fromkeys(result["family"] for result in results))
    width = (len(families) + 1) // 2
    figure, panels = plt.subplots(2, width, figsize=(4.2 * width, 9.5), squeeze=False)
    for axes, family in zip(panels.flat, families, strict=False):
        cases = [result for result in results if result["family"] == family]
        for name in dict.fromkeys(name for case in cases for name in case["contestants"]):
            points = [
                (case["nodes"] + case["edges"], case["contestants"][name]["ms"])
                for case in cases
                if case["contestants"].get(name, {}).get("ms")
            ]
            if points:
                own = name == cases[0]["mask"]
                axes.plot(*zip(*points, strict=True), "o-" if own else "s--", label=name, ms=4)
        axes.set(title=family, xlabel="nodes + edges", ylabel="ms", xscale="log", yscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        # below the axes, where it hides no curve
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    for axes in panels.flat[len(families) :]:
        axes.set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=80)
    plt.close(figure)


# --- command line ------------------------------------------------------------------------------


def _only(text: str) -> list[str]:
    return chosen(text, list(FAMILIES))


def _nodes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = [0]
    if sizes[0] < 16:
        raise argparse.ArgumentTypeError(f"wanted numbers of nodes from 16, got {text!r}")
    return sizes


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = bench_parser("graph", __doc__)
    add = parser.add_argument
    add("--nodes", type=_nodes, help="sizes (default 5000,10000,...,80000; quick: 256,512,1024)")
    add("--only", type=_only, default=list(FAMILIES), help=f"out of {', '.join(FAMILIES)}")
    add("--limit", type=positive_number, default=60.0, help="seconds that a call may take")
    add("--plot", type=new_file, help="draw times against sizes into this PNG")
    add("--resume", action="store_true", help="keep the cases that the file of --json has")
    add_common(
        parser,
        quick="small graphs, under a minute",
        seconds="for the timed rounds of a case (8; quick: 0.2)",
        devices=("cpu",),  # as scipy and networkx
    )
    args = parsed(parser, argv)
    if args.resume and not args.json:
        parser.error("argument --resume: needs --json")
    args.nodes = args.nodes or ([256, 512, 1024] if args.quick else list(NODES))
    args.seconds = args.seconds or (0.2 if args.quick else 8.0)
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    use_threads(args.threads)
    report = environment(args.device)
    kept = ("only", "nodes", "seconds", "limit", "device", "seed")
    report["settings"] = {name: getattr(args, name) for name in kept}
    print(f"torch {torch.__version__}, {report['threads']} threads\n")
    results = kept_cases(args.json) if args.resume else []
    known = {(case["family"], case["asked"]) for case in results}
    for family in args.only:
        for nodes in args.nodes:
            if (family, nodes) not in known:
                results.append(measure(family, nodes, args))
                print(case_table(results[-1]), flush=True)
    results.sort(key=lambda case: (list(FAMILIES).index(case["family"]), case["asked"]))
    exponents = growth(results)
    judged = bars(results, exponents)
    print(summary(exponents, judged))
    report |= {"cases": results, "growth": exponents, "bars": judged}
    write_report(args.json, report)
    if args.plot:
        plot(results, args.plot)
    return exit_code(judged)


if __name__ == "__main__":
    sys.exit(main())
