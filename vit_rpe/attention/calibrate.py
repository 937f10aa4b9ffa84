"""The constants of the cost model on this machine: measured once, in about a second, and kept.

    python -m vit_rpe.attention.calibrate          measure now, write the file, print the constants

`VIT_RPE_PATH_COSTS` names another file, or says `default` for the constants in `cost.py`. A file
that it names and that holds something else is refused, and never written over.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from vit_rpe.features import ReLUFeatures
from vit_rpe.files import atomic_write, cache_folder
from vit_rpe.masks import Exponential, Mask, Toeplitz

from .cost import PathCosts, default_costs

if TYPE_CHECKING:
    from .plan import ConcretePath

PATH_COSTS_ENV = "VIT_RPE_PATH_COSTS"
_NAMES = {field.name for field in fields(PathCosts)}
# A GPU gets this many times as much work, or only the launches of its kernels would be measured.
_GPU_HEADS = 64


def device_costs(device: torch.device) -> PathCosts:
    """The constants for a device: from the file if they are there, otherwise measured.

    A device that this machine does not have gets the defaults.
    """
    here = device.type == "cpu" or (torch.accelerator.is_available() and device.type != "meta")
    if not here or os.environ.get(PATH_COSTS_ENV) == "default":
        return default_costs(device.type)
    return _device_costs(device.type, _name(device))


@cache
def _device_costs(device: str, name: str) -> PathCosts:
    file = costs_file()
    known = _known(file)
    if set(known.get(name, ())) != _NAMES:
        # whatever mode the first call came in: what is measured is training in full precision
        plain = torch.autocast(device, enabled=False)
        with torch.inference_mode(False), torch.enable_grad(), plain:
            known[name] = asdict(measure(torch.device(device)))
        _write(file, known)
    return PathCosts(**known[name])


def costs_file() -> Path:
    setting = os.environ.get(PATH_COSTS_ENV)
    if setting:
        return Path(setting)
    return cache_folder() / "path_costs.json"


def measure(device: torch.device) -> PathCosts:
    """The default constants, each path's scaled to what it takes here: a call, and its work."""
    costs = default_costs(device.type)
    tiny, image = (2, 2), (28, 28)
    many = 1 if device.type == "cpu" else _GPU_HEADS
    explicit_call = _nanoseconds("explicit", _toeplitz(tiny, device), 4, 8)
    scan_call = _nanoseconds("scan", _exponential((8, 8), device), 1, 8)
    explicit = _scale("explicit", _toeplitz(image, device), 4 * many, 64, explicit_call)
    product = _scale("product", _toeplitz(image, device), many, 16, explicit_call)
    scan = _scale("scan", _exponential((56, 56), device), many, 32, scan_call)
    return replace(
        costs,
        call=explicit_call,
        scan_call=scan_call,
        multiply=costs.multiply * explicit,
        tile_entry=costs.tile_entry * explicit,
        column_entry=costs.column_entry * product,
        product_work=costs.product_work * product,
        state_entry=costs.state_entry * scan,
        block_call=costs.block_call * scan,
    )


def _scale(path: ConcretePath, mask: Mask, heads: int, width: int, call: float) -> float:
    """Measured work over estimated work, beyond what a call costs in itself."""
    from .plan import AttentionRequest, estimate  # which asks for these constants

    idle = replace(default_costs(mask.device.type), call=0.0, scan_call=0.0)
    request = AttentionRequest(
        mask, (heads,), width, width, torch.float32, mask.device, ReLUFeatures(), path
    )
    work = max(_nanoseconds(path, mask, heads, width) - call, 0.1 * call)
    return work / estimate(request, idle)


def _nanoseconds(path: ConcretePath, mask: Mask, heads: int, width: int) -> float:
    """A forward and backward pass: the shortest of a few, for whatever disturbs only adds."""
    from .functional import masked_linear_attention  # which chooses by these constants

    q, k, v = (torch.rand(heads, mask.length, width, device=mask.device) for _ in range(3))
    leaves, features = [x.requires_grad_() for x in (q, k, v)], ReLUFeatures()

    def once() -> None:
        out = masked_linear_attention(q, k, v, mask, features=features, path=path)
        torch.autograd.grad(out.sum(), leaves)

    return 1e9 * _shortest_seconds(once, mask.device)


def _shortest_seconds(call: Callable[[], None], device: torch.device, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats + 1):  # the first warms up
        start = perf_counter()
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(perf_counter() - start)
    return min(times[1:])


def _toeplitz(grid: tuple[int, ...], device: torch.device) -> Toeplitz:
    return Toeplitz(torch.ones([2 * n - 1 for n in grid], device=device), grid)


def _exponential(grid: tuple[int, ...], device: torch.device) -> Exponential:
    rates = torch.full((1,), 0.1, device=device)
    return Exponential(rates, torch.ones_like(rates), grid)


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{device.type} {capability}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )


def _known(file: Path) -> dict[str, dict[str, float]]:
    """Read the constants in a file.

    A damaged one of our own is measured again; a file that the user names and that holds something
    else is refused, because it is not ours to write to.
    """
    try:
        return _read(file)
    except OSError:
        return {}
    except ValueError as error:
        if os.environ.get(PATH_COSTS_ENV):
            raise ValueError(f"{PATH_COSTS_ENV}: {file}: {error}") from None
        return {}


def _read(file: Path) -> dict[str, dict[str, float]]:
    """Read constants by device; those of other versions have other names and are not used."""
    if file.exists() and not file.is_file():
        raise ValueError("it is not a regular file")
    text = file.read_text()
    try:
        known = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(isinstance(v, dict) for v in known.values()):
        raise ValueError("it is no file of path costs; name another, or remove it")
    for constants in known.values():
        for name in _NAMES & set(constants):
            value = constants[name]
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} is a positive number of nanoseconds, got {value!r:.60}")
    return known


def _write(file: Path, known: dict[str, dict[str, float]]) -> None:
    """Write in one step, because several processes may write; a read-only home is ignored."""
    with suppress(OSError):
        with atomic_write(file) as draft:
            draft.write(f"{json.dumps(known, indent=1)}\n".encode())


def main() -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        known = _known(costs_file())
    except ValueError as error:
        print(f"calibrate: error: {error}", file=sys.stderr)
        return 2
    costs = measure(device)
    _write(costs_file(), {**known, _name(device): asdict(costs)})
    print(f"{_name(device)}: written to {costs_file()}")
    for name, value in asdict(costs).items():
        print(f"  {name:14} {value:.4g} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
