"""Processes that train together: how they start and end, and all that they tell each other.

No other file of this package sends anything from rank to rank. Functions here must be called on all
ranks, in the same order.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.utils import (
    DistributedType,
    ProjectConfiguration,
    broadcast_object_list,
    is_wandb_available,
)
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_optimizer_state_dict,
)

from vit_rpe.extras import MissingExtra
from vit_rpe.messages import short
from vit_rpe.program import program

from .errors import RecipeError
from .precision import Precision, choose_kernels
from .recipe.schema import Recipe

Result = TypeVar("Result")
_warned: list[str] = []
SLOW = 7200.0  # seconds for what may take long: the start, the first step, saving


# --- start and end


def accelerator_for(recipe: Recipe, folder: Path | None = None) -> Accelerator:
    """Join the processes of a recipe; with the folder of a run they also have trackers."""
    choose_kernels(recipe)
    trackers: list[Any] = ["tensorboard"]
    if recipe.log_wandb:
        if not is_wandb_available():
            raise RecipeError("log_wandb: wandb is not installed: pip install wandb")
        trackers.append("wandb")
    precision = Precision.requested(recipe)
    name = None if precision is None else precision.accelerate_name
    if folder is None:
        return make_accelerator(recipe.device, name)
    folders = ProjectConfiguration(str(folder), str(folder))
    return make_accelerator(recipe.device, name, log_with=trackers, project_config=folders)


def make_accelerator(device: str | None, precision: str | None, **options: Any) -> Accelerator:
    """Join the other processes, as `accelerate launch` or plain python has arranged them."""
    on_cpu = choose_device(device, precision).type == "cpu"
    views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    # for slow operations; a step has a shorter timeout, which pulse.py watches on all backends
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=2 * SLOW))
    handlers = [views, timeout]
    return Accelerator(mixed_precision=precision, cpu=on_cpu, kwargs_handlers=handlers, **options)


def choose_device(device: str | None, precision: str | None) -> torch.device:
    """Return the device of this name, or a GPU where there is one; refuse what it cannot do."""
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if device == "cuda" and on_cpu:
        raise RecipeError("device: there is no CUDA device here")
    if precision == Precision.FLOAT16.accelerate_name and on_cpu:
        raise RecipeError("amp_dtype: float16 needs a GPU; bfloat16 works on a CPU")
    return torch.device("cpu" if on_cpu else "cuda")


def shut_down() -> None:
    """Leave the other processes in an orderly way."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def launched_rank() -> int:
    """Return the rank that a launcher gave to this process, before there is an accelerator."""
    return int(os.environ.get("RANK", "0"))


def say(text: str, every_rank: bool = False) -> None:
    """Print to standard error, on the main process only, or on every rank with its number."""
    rank = launched_rank()
    if rank == 0 or every_rank:
        text = "\n".join(map(short, text.splitlines()))
        print(text if rank == 0 else f"rank {rank}: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Say on the main process what may be a mistake."""
    _warned.append(text)
    say(f"{program('train')}: warning: {text}")


def take_warnings() -> list[str]:
    """Return what this process warned of since it was asked last."""
    taken = list(_warned)
    _warned.clear()
    return taken


# --- values


def broadcast(accelerator: Accelerator, value: Any) -> Any:
    """Return the main process's value on every process."""
    return value if accelerator.num_processes == 1 else broadcast_object_list([value])[0]


def all_reduce_sum(accelerator: Accelerator, values: Tensor) -> list[float]:
    """Return the sums over all ranks, the same on each: one message, one wait for the device."""
    if accelerator.num_processes > 1:
        torch.distributed.all_reduce(values)
    return values.tolist()


def any_rank(accelerator: Accelerator, flag: bool) -> bool:
    """Return whether a flag is set on any rank."""
    if accelerator.num_processes == 1:
        return flag
    return (
        all_reduce_sum(accelerator, torch.tensor([float(flag)], device=accelerator.device))[0] > 0
    )


def gather_objects(accelerator: Accelerator, value: Any) -> list[Any]:
    """Return the values of all ranks, in their order."""
    values = [value] * accelerator.num_processes
    if len(values) > 1:
        torch.distributed.all_gather_object(values, value)
    return values


def gather_rows(accelerator: Accelerator, rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of all ranks, which have equally many; a row may have fields."""
    if accelerator.num_processes == 1:
        return rows
    raw = torch.from_numpy(np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1))
    raw = accelerator.gather(raw.to(accelerator.device)).cpu()  # pyright: ignore
    return raw.numpy().reshape(-1).view(rows.dtype)


def broadcast_buffers(accelerator: Accelerator, models: Iterable[nn.Module]) -> None:
    """Give every rank the main process's buffers: running statistics differ from rank to rank."""
    if accelerator.num_processes > 1:
        for model in models:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)


def barrier(accelerator: Accelerator) -> None:
    """Wait until all ranks are here."""
    if accelerator.num_processes > 1:
        torch.distributed.barrier()


# --- calls


def on_main(accelerator: Accelerator, call: Callable[[], Result]) -> Result:
    """Call on the main process; every process gets its result, or its error."""
    result, error = None, None
    if accelerator.is_main_process:
        try:
            result = call()
        except (ValueError, OSError, MissingExtra) as raised:
            error = raised
    result, error = broadcast(accelerator, (result, error))
    if error is not None:
        raise error
    return result


def main_first(accelerator: Accelerator, call: Callable[[], Result]) -> Result:
    """Call on the main process, then on the others; an error on the main one is raised on all."""
    results: list[Result] = []
    on_main(accelerator, lambda: results.append(call()))
    return results[0] if results else call()


# --- models in shards (FSDP)


def is_sharded(accelerator: Accelerator) -> bool:
    """Return whether each rank has only a part of the weights."""
    return accelerator.distributed_type == DistributedType.FSDP


def gather_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """Return the whole weights and optimizer state of a sharded model, on the main process."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_state_dict(model, optimizer, options=options)


def scatter_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Give each rank its part of a whole optimizer state."""
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer, state, options=options)


# --- signs of life


class StatusFiles:
    """Notes of ranks about where they are, in `RUN/.ranks/`: readable while a rank is stuck."""

    def __init__(self, run: Path, rank: int, world_size: int):
        self.folder, self.rank, self.world_size = run / ".ranks", rank, world_size

    def open(self) -> None:
        """Make the folder of the notes."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Remove the notes of all ranks; the main process does it."""
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, position: str) -> None:
        """Note where this rank is now."""
        self._file(self.rank).write_text(json.dumps(position))

    def positions(self) -> dict[int, str]:
        """Return what the other ranks wrote last."""
        return {rank: self._read(rank) for rank in self._others()}

    def silences(self) -> dict[int, float]:
        """Return how long before us the other ranks wrote, by the file system's clock."""
        found = {}
        for rank in self._others():
            with suppress(OSError):  # the main rank has ended, and has tidied up
                own, other = (self._file(each).stat().st_mtime for each in (self.rank, rank))
                found[rank] = own - other
        return found

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _file(self, rank: int) -> Path:
        return self.folder / f"{rank}.json"

    def _read(self, rank: int) -> str:
        with suppress(OSError, ValueError):
            return str(json.loads(self._file(rank).read_text()))
        return "an unknown position"
