"""What the benchmarks share: measuring in turns, one style of options, tables, bars and reports."""

from vit_rpe.measuring import in_turns, peak_mb, timed, try_once

from .options import (
    add_common,
    bench_parser,
    chosen,
    parsed,
    positive_integers,
    use_threads,
)
from .reporting import (
    aligned,
    environment,
    exit_code,
    judge,
    number,
    slope,
    verdict,
    write_report,
)

__all__ = [
    "add_common",
    "aligned",
    "bench_parser",
    "chosen",
    "environment",
    "exit_code",
    "in_turns",
    "judge",
    "number",
    "parsed",
    "peak_mb",
    "positive_integers",
    "slope",
    "timed",
    "try_once",
    "use_threads",
    "verdict",
    "write_report",
]
