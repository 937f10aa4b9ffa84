"""Run the paper's graph experiments: GKAT and its rivals, with seeds, beside the paper's figures.

    vit-rpe graphs motifs --quick
    vit-rpe graphs citation
    vit-rpe graphs motifs --only set=grid,ladder model=GKAT,GAT
    vit-rpe graphs all --nice 19
    vit-rpe graphs all --report --into docs/results.md

Tables: motifs, cycles (random graphs, made on the spot), citation, tu (read from the folder that
VIT_RPE_DATA names, or fetched with --download), speed, wallclock, or all of them. Each cell is one
training; a finished one is a line of JSON in docs/results/graphs_TABLE.jsonl, and the same command
goes on where it was stopped. --quick tries everything on a few small graphs, in output/graphs.
Exit codes: 0 done, 2 data, results or options are wrong, 75 stopped by a signal.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from vit_rpe.extras import import_extra
from vit_rpe.program import program

from .command_line import (
    DONE,
    STOPPED,
    command_parser,
    niceness,
    one_line_errors,
    positive_integer,
)

NAMES = ("motifs", "cycles", "citation", "tu", "speed", "wallclock")
RESULTS, QUICK = Path("docs/results"), Path("output/graphs")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    names = NAMES if args.table == "all" else (args.table,)
    folder = args.output or (QUICK if args.quick else RESULTS)
    with one_line_errors(program("graphs")):
        graphs = import_extra("vit_rpe.experiments.graphs", "graph", "graph experiments")
        if args.dry_run:
            for cell in graphs.planned(names, folder, args.quick, dict(args.only)):
                print(cell.name)
            return DONE
        if not args.report:
            torch.set_num_threads(args.threads)
            os.nice(args.nice)
            if args.download:
                graphs.download(names)
            try:
                graphs.run_tables(names, folder, _say, args.quick, dict(args.only))
            except graphs.Stopped:
                print("stopped; the same command goes on with the cell that it was in")
                return STOPPED
        for name in names:
            print(graphs.section(name, folder, args.quick))
        if args.into is not None:
            graphs.insert_sections(names, folder, args.into)
        if args.figures is not None:
            drawn = graphs.draw_tables(names, folder, args.figures)
            print(f"pictures: {', '.join(map(str, drawn)) or 'none'}")
    return DONE


def _say(line: str) -> None:
    print(line, flush=True)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser("graphs", __doc__)
    add = parser.add_argument
    add("table", choices=(*NAMES, "all"), help="which table of the paper")
    add("--quick", action="store_true", help="small graphs, few epochs: does everything run?")
    add("--only", type=_level, nargs="+", default=[], metavar="LEVEL=A,B",
        help="cells with these levels, such as model=GKAT; --dry-run shows them")  # fmt: skip
    add("--output", type=Path, help=f"folder of results (default: {RESULTS}; quick: {QUICK})")
    add("--download", action="store_true", help="fetch data sets that are not there, by PyG")
    add("--threads", type=positive_integer, default=1, help="of torch (default: 1)")
    add("--nice", type=niceness, default=0, help="0 to 19: how far to stand back for others")
    add("--dry-run", action="store_true", help="only list the cells that can be run now")
    add("--report", action="store_true", help="only make the tables of what is there")
    add("--into", type=Path, metavar="PAGE", help="also renew the sections of a page")
    add("--figures", type=Path, metavar="DIR", help="also draw pictures into this folder")
    return parser.parse_args(argv)


def _level(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise argparse.ArgumentTypeError(f"wanted LEVEL=VALUE or LEVEL=A,B, got {text!r}")
    return name, values.split(",")
