"""The surroundings of a run and of its replay: what must be the same, and what may tell on bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator

from vit_rpe.program import typed

from ..distributed import is_sharded
from ..errors import RecipeError
from ..exhibits.origin import device_name, machine, versions
from ..recipe.schema import Recipe
from .history import Start


def as_it_was(start: Start) -> Recipe:
    """Return the recipe of a start for the device of then, and with no end to skipped steps."""
    changes: dict[str, Any] = {"max_skipped_steps": 2**62, "log_wandb": False}
    if (device := start.process("device")) is not None:
        on_cpu = device == "cpu"
        if not on_cpu and not torch.cuda.is_available():
            raise RecipeError(f"the run was on {device}, and there is no GPU here")
        changes["device"] = "cpu" if on_cpu else "cuda"
    return start.recipe.model_copy(update=changes)


def settle(start: Start, accelerator: Accelerator, command: tuple[object, ...]) -> None:
    """Take as many threads as the run had; refuse another number of processes."""
    if is_sharded(accelerator):
        raise RecipeError("steps of a model in shards (FSDP) cannot be replayed")
    here, then = accelerator.num_processes, start.process("world_size")
    if isinstance(then, int) and then != here:
        raise RecipeError(
            f"the run had {_processes(then)}, and a replay needs as many: here "
            f"{'is' if here == 1 else 'are'} {here}; {_launched(then, start, command)}"
        )
    threads = start.process("threads")
    if isinstance(threads, int) and threads > 0:
        torch.set_num_threads(threads)


def differences(start: Start, accelerator: Accelerator, plan: Any) -> list[str]:
    """Say in which ways this place is another than that of a start: bits may differ then."""
    then = {**start.part("versions"), "processor": start.part("machine").get("cpu")}
    then.update(device=start.process("device"), attention=_way(start.part("model").get("plan")))
    here = {**versions(), "processor": machine()["cpu"]}
    here.update(device=device_name(accelerator.device), attention=_way(plan))
    return [*_unequal(then, here)]


def _unequal(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for name, before in then.items():
        if before is not None and before != here.get(name):
            yield f"{name} {before} then, {here.get(name)} here"


def _way(plan: Any) -> Any:
    """Return the path and the form of a plan; the reason is another one now: it was recorded."""
    return plan.partition(":")[0] if isinstance(plan, str) else plan


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def _launched(count: int, start: Start, command: tuple[object, ...]) -> str:
    """Say how to start as many processes as the run had."""
    words = typed("replay", *command)
    if count == 1:
        return f"without a launcher: {words}"
    on_cpu = start.process("device") == "cpu"
    kind = "--config_file $(vit-rpe recipes path cpu_x2)" if on_cpu else "--multi_gpu"
    arguments = words.partition(" replay ")[2]
    return (
        f"accelerate launch {kind} --num_processes {count} -m vit_rpe replay {arguments} starts "
        "them"
    )
