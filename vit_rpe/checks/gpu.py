"""All checks of the fused kernels in one report: on a GPU, or what can be run without one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import vit_rpe

from .cases import FULL, Case
from .child import ChildError, json_lines
from .compilation import DTYPES, TARGETS, WIDTHS, Compilation, CompilationError, compilations
from .numbers import Numbers, compare
from .speed import Speed, layer_speeds, model_speeds

Say = Callable[[str], None]
_REPEATS = 20
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass
class GpuReport:
    """The checks that were made, on which machine, and what went wrong."""

    environment: dict[str, str]
    numbers: list[Numbers] = field(default_factory=list)
    compilations: list[Compilation] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, one line each."""
        found = [(f"{x.case}, {x.dtype}", x.problem()) for x in self.numbers]
        found += [
            (f"{x.kernel} for {x.target}, {x.dtype}, width {x.width}", x.problem())
            for x in self.compilations
            if x.dtype != "float32"
        ]
        return self.errors + [f"{name}: {problem}" for name, problem in found if problem]

    @property
    def passed(self) -> bool:
        return not self.problems and bool(self.numbers)

    def as_dict(self) -> dict[str, Any]:
        """The report for a JSON file."""
        return {"passed": self.passed, "problems": self.problems, **asdict(self)}


def environment(device: torch.device | None) -> dict[str, str]:
    """The versions and the GPU that matter to numbers and times."""
    found = {"vit_rpe": vit_rpe.__version__, "torch": torch.__version__}
    for package in ("triton", "timm"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["CUDA"] = str(torch.version.cuda or torch.version.hip)
    if device is None:
        return {**found, "GPU": "none: kernels were interpreted on a CPU, and compiled"}
    properties = torch.cuda.get_device_properties(device)
    found["GPU"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GB"
    found["architecture"] = getattr(properties, "gcnArchName", "") or (
        f"sm_{properties.major}{properties.minor}"
    )
    return found


def check_gpu(
    device: torch.device,
    say: Say,
    cases: list[Case] | None = None,
    repeats: int = _REPEATS,
    speeds: Callable[[], Iterator[Speed]] | None = None,
) -> GpuReport:
    """Run the kernels on a GPU: each case in each precision, bits of repetitions, speed."""
    report = GpuReport(environment(device if device.type == "cuda" else None))
    with _tf32():
        for case in FULL if cases is None else cases:
            for dtype in _PRECISIONS:
                if not (case.signed and dtype != torch.float32):
                    _compared(report, case, dtype, device, repeats, say)
    for speed in (speeds or (lambda: _speeds(device)))():
        report.speeds.append(speed)
        say(_speed_line(speed))
    return report


def _compared(
    report: GpuReport,
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    repeats: int,
    say: Say,
) -> None:
    name = str(dtype).removeprefix("torch.")
    try:
        numbers = compare(case, dtype, device, repeats)
    except Exception as error:  # a broken kernel fails its case, and not the others
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        report.errors.append(f"{case.name}, {name}: {reason}")
        say(f"{case.name}, {name}: {reason}")
        return
    report.numbers.append(numbers)
    say(_numbers_line(numbers))


def check_without_gpu(
    say: Say,
    targets: tuple[str, ...] = TARGETS,
    dtypes: tuple[str, ...] = DTYPES,
    widths: tuple[int, ...] = WIDTHS,
) -> GpuReport:
    """Interpret the kernels on a CPU, and compile them for GPUs that are not there."""
    report = GpuReport(environment(None))
    switches = {"TRITON_INTERPRET": "1", "VIT_RPE_TRITON": "1", "VIT_RPE_PATH_COSTS": "default"}
    try:
        for fields in json_lines("vit_rpe.checks.numbers", environment={**os.environ, **switches}):
            report.numbers.append(Numbers(**fields))
            say(_numbers_line(report.numbers[-1]))
    except ChildError as error:
        report.errors.append(f"interpreted: {error}")
    for target in targets:
        for dtype in dtypes:
            try:
                for found in compilations(target, dtype, widths):
                    report.compilations.append(found)
                    say(_compilation_line(found))
            except CompilationError as error:
                report.errors.append(str(error))
    return report


def _speeds(device: torch.device) -> Iterator[Speed]:
    yield from layer_speeds(device)
    yield from model_speeds(device)


@contextmanager
def _tf32() -> Iterator[None]:
    """Let products of float32 be rounded to TF32, or their kernels would not be taken."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# --- lines of progress --------------------------------------------------------------------------


def _numbers_line(x: Numbers) -> str:
    worst = max(x.errors.values())
    bits = f"{x.repeats} times the same bits" if x.same_bits else "BITS DIFFER"
    mark = "ok  " if x.problem() is None else "FAIL"
    return f"{mark} {x.case}, {x.dtype}: error {worst:.1e}, {bits}"


def _compilation_line(x: Compilation) -> str:
    mark = "ok  " if x.problem() is None else "FAIL"
    return (
        f"{mark} {x.kernel} for {x.target}, {x.dtype}, width {x.width}: {x.registers} registers, "
        f"{x.shared} bytes shared, {x.stack} on the stack"
    )


def _speed_line(x: Speed) -> str:
    if x.milliseconds is None:
        return f"     {x.case}: {x.contestant} did not run: {x.failure}"
    ratio = "" if x.ratio is None else f", {x.ratio:.2f} of the first"
    return f"     {x.case}: {x.contestant} {x.milliseconds:.3g} ms{ratio} ({x.rounds} rounds)"
