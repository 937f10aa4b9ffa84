"""Make a page to look at: curves, recipe, confusion matrix, samples, masks, attention.

    vit-rpe report runs/quickstart
    vit-rpe report runs/a runs/b --output compared.html

One file that works offline: report.html in the folder of the run, or of the first of several, which
are compared. It shows the best checkpoint and what the run kept beside its checkpoints; pictures of
samples come from the shards of its recipe. A run makes its report by itself when it ends
(report=false: it does not).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit_rpe.program import program
from vit_rpe.report import LIMIT, write_report

from .command_line import DONE, command_parser, new_file, one_line_errors, positive_number

MEGABYTE = 1e6


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    with one_line_errors(program("report")):
        print(write_report(args.runs, args.output, int(args.limit * MEGABYTE)))
    return DONE


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser("report", __doc__)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    add("--output", type=new_file, metavar="FILE", help="default: report.html of the first run")
    add(
        "--limit",
        type=_limit,
        default=LIMIT / MEGABYTE,
        metavar="MB",
        help="size of the page; what does not fit is thinned (default: %(default)g)",
    )
    return parser.parse_args(argv)


def _limit(text: str) -> float:
    value = positive_number(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"wanted a size from 1 to 1000 MB, got {text!r}")
    return value
