"""Processes that train together: how they start, and how they come to an agreement."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.utils import (
    DistributedType,
    ProjectConfiguration,
    broadcast_object_list,
    is_wandb_available,
)
from torch import Tensor

from .errors import RecipeError
from .loop.pulse import PATIENCE
from .recipe.schema import Recipe

Result = TypeVar("Result")
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def start(recipe: Recipe, run: Path | None = None) -> Accelerator:
    """The processes of a recipe; with a folder for a run they have trackers too."""
    precision = None
    if recipe.amp is not None:
        precision = PRECISIONS[recipe.amp_dtype] if recipe.amp else "no"
    trackers: list[Any] = ["tensorboard"]
    if recipe.log_wandb:
        if not is_wandb_available():
            raise RecipeError("log_wandb: wandb is not installed: pip install wandb")
        trackers.append("wandb")
    if run is None:
        return join(recipe.device, precision)
    folders = ProjectConfiguration(str(run), str(run))
    return join(recipe.device, precision, log_with=trackers, project_config=folders)


def join(device: str | None, precision: str | None, **options: Any) -> Accelerator:
    """Join the other processes, as `accelerate launch` or plain python has arranged them."""
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if device == "cuda" and on_cpu:
        raise RecipeError("device: there is no CUDA device here")
    if precision == "fp16" and on_cpu:
        raise RecipeError("amp_dtype: float16 needs a GPU; bfloat16 works on a CPU")
    views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    # for what is slow; that of a step is shorter, and watched by pulse.py, on all backends alike
    patience = InitProcessGroupKwargs(timeout=timedelta(seconds=2 * PATIENCE))
    handlers = [views, patience]
    return Accelerator(mixed_precision=precision, cpu=on_cpu, kwargs_handlers=handlers, **options)


def leave() -> None:
    """Part from the other processes in good order."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def is_sharded(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.FSDP


def total(accelerator: Accelerator, values: Tensor) -> list[float]:
    """The sums over all ranks, the same on each: one message, one wait for the device."""
    if accelerator.num_processes > 1:
        torch.distributed.all_reduce(values)
    return values.tolist()


def anywhere(accelerator: Accelerator, flag: bool) -> bool:
    """Whether a flag is up on any rank."""
    if accelerator.num_processes == 1:
        return flag
    return total(accelerator, torch.tensor([float(flag)], device=accelerator.device))[0] > 0


def of_main(accelerator: Accelerator, value: Any) -> Any:
    """What the main process has, on every process."""
    return value if accelerator.num_processes == 1 else broadcast_object_list([value])[0]


def on_main(accelerator: Accelerator, call: Callable[[], Result]) -> Result:
    """What a call on the main process gives, on every process; its error is one on all."""
    result, error = None, None
    if accelerator.is_main_process:
        try:
            result = call()
        except (ValueError, OSError) as raised:
            error = raised
    result, error = of_main(accelerator, (result, error))
    if error is not None:
        raise error
    return result


def main_first(accelerator: Accelerator, call: Callable[[], Result]) -> Result:
    """Call on the main process, then on the others; an error on the main one is one on all."""
    results: list[Result] = []
    on_main(accelerator, lambda: results.append(call()))
    return results[0] if results else call()


def barrier(accelerator: Accelerator) -> None:
    if accelerator.num_processes > 1:
        torch.distributed.barrier()
