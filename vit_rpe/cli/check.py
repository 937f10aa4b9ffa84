"""Check the numbers on this machine: every path of attention against the definition.

    vit-rpe check
    vit-rpe check --grid 7 9 --grid 28 28
    vit-rpe check --device cuda --output gpu-check

Prints errors and times, and ends with PASS, or with FAIL and exit code 1.

--device cuda checks the fused kernels: every one in every precision against float64, with all
gradients; whether repetitions give the same bits; and speed beside torch's attention,
FlexAttention and timm's ViT. It writes report.json and report.html into the output folder, and
nothing about the machine but its GPU and versions: please send them to us. Without a GPU the
kernels are interpreted, and compiled for GPUs that are not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

import vit_rpe
from vit_rpe import checks
from vit_rpe.attention import (
    AttentionRequest,
    PathName,
    masked_attention,
    masked_linear_attention,
    plan_attention,
)
from vit_rpe.features import ReLUFeatures
from vit_rpe.files import atomic_write
from vit_rpe.masks import Bordered
from vit_rpe.program import program
from vit_rpe.rpe import DistanceRPE, ExponentialRPE, GridRPE, OffsetRPE

from .command_line import (
    DONE,
    FAILED,
    command_parser,
    one_line_errors,
    positive_integer,
    write_json,
)

GRIDS = [(14, 14), (32, 32)]
HEADS, FEATURES, CHANNELS = 4, 32, 32
RELU = ReLUFeatures()
PREFIX = 1  # a class token
TOLERANCE = 1e-4


@dataclass
class Result:
    mask: str
    path: str
    error: float
    seconds: float

    def passed(self) -> bool:
        return self.error <= TOLERANCE  # NaN is an error, too


@torch.inference_mode()
def check_grid(grid: tuple[int, ...]) -> tuple[float, list[Result]]:
    """The time of softmax attention, to compare; and every mask on every path that it allows."""
    length = PREFIX + prod(grid)
    q, k = torch.randn(2, 1, HEADS, length, FEATURES).relu()
    v = torch.randn(1, HEADS, length, CHANNELS)
    softmax = _seconds(lambda: F.scaled_dot_product_attention(q, k, v))
    results = []
    for name, rpe in _modules(grid).items():
        expected = masked_attention(q.double(), k.double(), v.double(), Bordered(rpe(), PREFIX))
        for path in _paths(rpe):
            out = _attend(q, k, v, rpe, path)
            error = (out - expected).norm(dim=-1) / expected.norm(dim=-1)
            label = path
            if path == "auto":
                plan = plan_attention(
                    AttentionRequest.of(q, k, v, Bordered(rpe(), PREFIX), features=RELU)
                )
                label = f"auto = {plan.path}"
            seconds = _seconds(lambda rpe=rpe, path=path: _attend(q, k, v, rpe, path))
            results.append(Result(name, label, error.max().item(), seconds))
    return softmax, results


def _modules(grid: tuple[int, ...]) -> dict[str, GridRPE]:
    """The decaying start, shaken: a symmetric mask could hide a flipped sign or a swapped axis."""
    modules: dict[str, GridRPE] = {
        "OffsetRPE": OffsetRPE(grid, HEADS, init="decay"),
        "DistanceRPE": DistanceRPE(grid, HEADS, init="decay"),
        "ExponentialRPE": ExponentialRPE(grid, HEADS, init="decay"),
        "ExponentialRPE, 1-sided": ExponentialRPE(grid, HEADS, init="decay", one_sided=(0,)),
    }
    for module in modules.values():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return modules


def _paths(rpe: GridRPE) -> list[PathName]:
    paths: list[PathName] = ["explicit", "product", "auto"]
    if isinstance(rpe, ExponentialRPE):  # its masks have states
        paths.insert(2, "scan")
    return paths


def _attend(q: Tensor, k: Tensor, v: Tensor, rpe: GridRPE, path: PathName) -> Tensor:
    """As in a forward pass: the mask is made again, and counts in the time."""
    mask = Bordered(rpe(), PREFIX)
    return masked_linear_attention(q, k, v, mask, features=RELU, path=path)


def _seconds(run: Callable[[], object], repeats: int = 5, limit: float = 0.3) -> float:
    """The median of some runs, fewer if they are slow."""
    times: list[float] = []
    run()
    while len(times) < repeats and sum(times) < limit:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return median(times)


def print_table(grid: tuple[int, ...], softmax: float, results: list[Result]) -> None:
    tokens = f"{' x '.join(map(str, grid))} grid and a class token, {PREFIX + prod(grid)} tokens"
    print(f"\n{tokens}\n{'mask':<25}{'path':<18}{'relative error':>14}{'median time':>15}")
    print(f"{'no mask':<25}{'softmax by torch':<18}{'-':>14}{1e3 * softmax:>12.1f} ms")
    previous = ""
    for result in results:
        mask = "" if result.mask == previous else result.mask
        mark = "" if result.passed() else "  FAIL"
        numbers = f"{result.error:>14.1e}{1e3 * result.seconds:>12.1f} ms"
        print(f"{mask:<25}{result.path:<18}{numbers}{mark}")
        previous = result.mask


def main(argv: list[str] | None = None) -> int:
    parser = command_parser("check", __doc__)
    parser.add_argument(
        "--grid",
        type=positive_integer,
        nargs=2,
        action="append",
        metavar=("ROWS", "COLUMNS"),
        help="tokens of an image; may be given several times (default: 14 14 and 32 32)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the fused kernels (cpu)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="of the report of --device cuda (gpu-check)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="with --device cuda: small cases, a few compilations"
    )
    args = parser.parse_args(argv)
    if args.device == "cuda":
        if args.grid:
            parser.error("argument --grid: has no meaning with --device cuda")
        return check_kernels(args.output or Path("gpu-check"), args.quick)
    if args.output or args.quick:
        parser.error("arguments --output and --quick: want --device cuda")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other tell no time
    print(
        f"vit_rpe {vit_rpe.__version__}, torch {torch.__version__}; float32, forward, 1 thread; "
        f"{HEADS} heads, {FEATURES} features, {CHANNELS} channels"
    )
    results: list[Result] = []
    for grid in map(tuple, args.grid or GRIDS):
        softmax, of_grid = check_grid(grid)
        print_table(grid, softmax, of_grid)
        results += of_grid
    print(f"\n{verdict(results)}")
    return DONE if all(result.passed() for result in results) else FAILED


def check_kernels(output: Path, quick: bool) -> int:
    """Check the fused kernels, and write the report."""
    with one_line_errors(program("check")):
        output.mkdir(parents=True, exist_ok=True)
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
        print(f"Checking the fused kernels on {torch.cuda.get_device_name(device)}")
        options = {"cases": checks.SMALL, "speeds": lambda: iter(())} if quick else {}
        report = checks.check_gpu(device, _say, **options)
    else:
        print(
            "There is no GPU here. What can be run without one: the kernels, interpreted on this "
            "CPU, and their compilation. Not speed, races, or code that a compiler got wrong."
        )
        few = {"targets": ("sm_80",), "dtypes": ("bfloat16",), "widths": (64,)} if quick else {}
        report = checks.check_without_gpu(_say, **few)
    write_json(output / "report.json", report.as_dict())
    with atomic_write(output / "report.html") as file:
        file.write(checks.page(report).encode())
    for problem in report.problems:
        print(f"FAIL {problem}")
    print(f"\n{'PASS' if report.passed else 'FAIL'}; the report is in {output / 'report.html'}")
    return DONE if report.passed else FAILED


def _say(line: str) -> None:
    print(line, flush=True)


def verdict(results: list[Result]) -> str:
    failed = sum(not result.passed() for result in results)
    if failed:
        return f"FAIL: {failed} of {len(results)} errors are above {TOLERANCE:.0e}"
    worst = max(result.error for result in results)
    return (
        "PASS: every path agrees with the definition; the largest relative error is "
        f"{worst:.1e} (allowed: {TOLERANCE:.0e})"
    )
