"""Compile the fused kernels for GPUs that are not here, and print what they use as a table.

    python tools/bench/gpu_kernels.py --markdown
    python tools/bench/gpu_kernels.py --targets sm_90 --dtypes bfloat16 --widths 64 --json k.json

For each kernel and kind of GPU: registers of a thread / bytes of shared memory of a program / bytes
of a thread on the stack, which are registers that were spilled. The bars: nothing on the stack,
shared memory within what the GPU has, matrix instructions, no atomics. float32, which multiplies as
TF32, is printed and not judged.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout: tools, vit_rpe

from tools.bench.harness import aligned, bench_parser, environment, positive_integers, write_report
from vit_rpe.checks import DTYPES, TARGETS, Compilation, compilations
from vit_rpe.cli.command_line import new_file


def cells(found: list[Compilation], targets: list[str]) -> list[list[str]]:
    """A row for each kernel, precision and width, with a column for each kind of GPU."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for x in found:
        key = (x.kernel, x.dtype, str(x.width))
        numbers = f"{x.registers} / {x.shared:,} / {x.stack}"
        rows.setdefault(key, {})[x.target] = f"{numbers} ({_short(x.tile)})"
    return [[*key, *(row.get(target, "-") for target in targets)] for key, row in rows.items()]


def _short(tile: str) -> str:
    """`64 x 32, 4 warps, 2 stages` as `64x32w4s2`."""
    size, warps, stages = tile.split(", ")
    return f"{size.replace(' ', '')}w{warps.split()[0]}s{stages.split()[0]}"


def main(argv: list[str] | None = None) -> int:
    parser = bench_parser("gpu_kernels", __doc__)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--widths", type=positive_integers, default=[32, 64, 128])
    parser.add_argument("--markdown", action="store_true", help="a table for a page")
    parser.add_argument("--json", type=new_file, help="write all numbers to this file")
    args = parser.parse_args(argv)
    found = [
        report
        for target in args.targets
        for dtype in args.dtypes
        for report in compilations(target, dtype, tuple(args.widths))
    ]
    head = ["kernel", "precision", "M = D", *args.targets]
    body = cells(found, args.targets)
    if args.markdown:
        lines = [head, ["---"] * len(head), *body]
        print("\n".join(f"| {' | '.join(row)} |" for row in lines))
    else:
        print(aligned([head, *body]))
    judged = [x for x in found if x.dtype != "float32"]
    problems = [f"{x.kernel}, {x.target}, {x.dtype}, {x.width}: {x.problem()}" for x in judged]
    problems = [text for x, text in zip(judged, problems, strict=True) if x.problem()]
    print("\n".join(["", *problems, f"{len(problems)} of {len(judged)} miss a bar"]))
    rows = [asdict(x) for x in found]
    write_report(args.json, {**environment("cpu"), "kernels": rows, "problems": problems})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
