"""A report as one HTML file that needs nothing else, to be sent to whoever asks for it."""

from __future__ import annotations

import math
from html import escape

from .compilation import Compilation
from .gpu import GpuReport
from .numbers import Numbers
from .speed import Speed

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
td, th { padding: .2em .8em; text-align: left; border-bottom: 1px solid #ddd; }
td.number, th.number { text-align: right; white-space: nowrap; }
table:first-of-type td { text-align: left; }
td:first-child { min-width: 12em; }
.bad { background: #fbe3e0; } .pass { color: #1a6e3c; } .fail { color: #b3261e; }
@media (prefers-color-scheme: dark) {
  body { background: #181a1b; color: #ddd; } td, th { border-color: #444; }
  .bad { background: #4a2320; } .pass { color: #6fcf97; } .fail { color: #ff8a80; }
}
"""


def page(report: GpuReport) -> str:
    """The report in HTML."""
    verdict = "PASS" if report.passed else "FAIL"
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>vit_rpe: check of GPU kernels, {verdict}</title><style>{_STYLE}</style>",
        f"<h1>Check of GPU kernels: <span class='{verdict.lower()}'>{verdict}</span></h1>",
        _table(["", ""], [list(pair) for pair in report.environment.items()]),
    ]
    if report.problems:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in report.problems)
        parts.append(f"<h2>Problems</h2><ul class='fail'>{items}</ul>")
    if report.numbers:
        parts += [
            "<h2>Numbers</h2><p>Relative errors against float64 by whole matrices, of the result "
            "and of all gradients; in brackets the errors of the same written in torch, in the "
            "same precision; for float32 on a GPU, of exact products of inputs cut to TF32. Bits "
            "are those of repetitions.</p>",
            _numbers(report.numbers),
        ]
    if report.speeds:
        parts += [
            "<h2>Speed</h2><p>Forward and backward pass, medians; contestants took turns. "
            "Ratios are over the first of each case.</p>",
            _speeds(report.speeds),
        ]
    if report.compilations:
        parts += [
            "<h2>Compilation</h2><p>What the compilers made of each kernel: registers of a thread, "
            "bytes of shared memory, bytes that did not fit into registers.</p>",
            _compilations(report.compilations),
        ]
    return "\n".join(parts) + "\n"


def _numbers(rows: list[Numbers]) -> str:
    names = list(rows[0].errors)
    head = ["case", "precision", *names, "bits"]
    body = []
    for x in rows:
        both = [f"{x.errors[name]:.1e} ({x.torch_errors[name]:.1e})" for name in names]
        bits = f"same,\u00a0{x.repeats}\u00a0times" if x.same_bits else "differ"
        body.append([x.case, x.dtype, *both, bits])
    return _table(head, body, {i for i, x in enumerate(rows) if x.problem()})


def _speeds(rows: list[Speed]) -> str:
    head = ["case", "contestant", "ms", "ratio", "peak MB", "rounds"]
    body = []
    for x in rows:
        cells = [_number(n) for n in (x.milliseconds, x.ratio, x.peak_megabytes)]
        body.append([x.case, x.contestant, *cells, x.failure or str(x.rounds)])
    return _table(head, body)


def _compilations(rows: list[Compilation]) -> str:
    head = ["kernel", "GPU", "precision", "width", "tile", "registers", "shared", "stack"]
    body = [
        [x.kernel, x.target, x.dtype, str(x.width), x.tile]
        + [f"{n:,}" for n in (x.registers, x.shared, x.stack)]
        for x in rows
    ]
    return _table(head, body, {i for i, x in enumerate(rows) if x.problem()})


def _table(head: list[str], body: list[list[str]], bad: set[int] | None = None) -> str:
    def cells(row: list[str], tag: str) -> str:
        return "".join(
            f"<{tag} class='number'>{escape(x)}</{tag}>"
            if x[:1].isdigit()
            else f"<{tag}>{escape(x)}</{tag}>"
            for x in row
        )

    rows = [f"<tr>{cells(head, 'th')}</tr>"] if any(head) else []
    for i, row in enumerate(body):
        mark = " class='bad'" if bad and i in bad else ""
        rows.append(f"<tr{mark}>{cells(row, 'td')}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _number(x: float | None) -> str:
    return "-" if x is None or math.isnan(x) else f"{x:.3g}" if x < 1000 else f"{x:,.0f}"
