"""What learns: weights, their average, optimiser, schedule and precision, on any kind of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from textwrap import shorten
from typing import Any

import torch
from accelerate import Accelerator
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_optimizer_state_dict,
)

from vit_rpe.data import seed_model

from .checkpoint import Snapshot
from .errors import CheckpointError, RecipeError
from .optim import Schedule, clip_gradients, make_optimizer, seed_optimizer
from .ranks import is_sharded
from .recipe import Recipe
from .task import Task


class Learner:
    """A model and all that changes when it makes a step. `snapshot` is what it goes on from.

    `net` is the plain model, `model` what accelerate makes of it: the same, DDP or FSDP.
    """

    def __init__(
        self,
        recipe: Recipe,
        accelerator: Accelerator,
        net: nn.Module,
        steps_per_epoch: int,
        snapshot: Snapshot | None = None,
    ):
        self.recipe, self.accelerator = recipe, accelerator
        self.sharded = is_sharded(accelerator)
        layout = torch.channels_last if recipe.channels_last else torch.preserve_format
        self.net: nn.Module = net.to(accelerator.device, memory_format=layout)  # pyright: ignore
        self.ema = self._average() if recipe.model_ema else None
        if snapshot is not None:  # before the model is wrapped: FSDP knows its own shards only
            self._load_weights(snapshot)
        optimizer = make_optimizer(recipe, self.net)
        self.schedule = Schedule(recipe, optimizer, steps_per_epoch)
        compiled: Any = self.net
        if recipe.torchcompile:
            compiled = torch.compile(self.net, backend=recipe.torchcompile)
        self.model, self.optimizer = accelerator.prepare(compiled, optimizer)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.second_order = bool(getattr(optimizer, "is_second_order", False))

    @property
    def lr(self) -> float:
        """The largest: with layer decay that of the last layer."""
        return max(group["lr"] for group in self.optimizer.param_groups)

    # --- one step

    def backward(self, task: Task, images: Tensor, targets: Tensor, step: int) -> Tensor:
        """Gradients of this process's part of a batch, piece by piece; gives its mean loss."""
        recipe, accelerator = self.recipe, self.accelerator
        self.model.train()
        if recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        pieces, size = recipe.grad_accum_steps, len(images)
        loss = torch.zeros((), device=images.device)
        parts = zip(images.chunk(pieces), targets.chunk(pieces), strict=True)
        for piece, (x, y) in enumerate(parts, 1):
            # dropout and stochastic depth draw from here: resuming needs no state of generators
            seed_model(recipe.seed, step, piece, accelerator.process_index)
            with nullcontext() if piece == pieces else accelerator.no_sync(self.model):
                with accelerator.autocast():
                    part = task.loss(self.model, x, y) / size
                accelerator.backward(part, create_graph=self.second_order)
            loss = loss + part.detach()
        return loss

    def clip(self) -> Tensor:
        """Clip the gradient as the recipe says; gives its norm before."""
        limit, mode = self.recipe.clip_grad, self.recipe.clip_mode
        if self.sharded or (mode == "norm" and limit is not None):
            norm = self.accelerator.clip_grad_norm_(self.parameters, limit or math.inf)
            assert norm is not None
            return norm
        self.accelerator.unscale_gradients()
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if limit is not None:
            clip_gradients(self.parameters, limit, mode)
        return norm

    def update(self, step: int, finite: bool) -> None:
        """Make the step if all is finite; forget the gradients."""
        seed_optimizer(self.optimizer.optimizer, self.accelerator.device, self.recipe.seed, step)
        if finite or self.accelerator.scaler is not None:
            self.optimizer.step()  # a scaler leaves out by itself what is not finite
        self.optimizer.zero_grad()
        if finite and self.ema is not None:
            self.ema.update(self.net, step=step + 1)

    def scale_was_too_large(self, loss: float) -> bool:
        """Whether a step was not finite only because float16 was scaled too far: no harm done."""
        scaler = self.accelerator.scaler
        return scaler is not None and math.isfinite(loss) and scaler.get_scale() >= 1

    # --- evaluation

    def models(self) -> dict[str, nn.Module]:
        """What is evaluated, by the prefix of its metrics, the same on every rank."""
        found = {"eval": self.model if self.sharded else self.net}
        if self.ema is not None:
            found["ema"] = self.ema.module
        if self.accelerator.num_processes > 1 and not self.sharded:
            for buffer in self._buffers(found):  # running statistics: each rank saw other samples
                torch.distributed.broadcast(buffer, 0)
        return found

    def _buffers(self, models: dict[str, nn.Module]) -> Iterator[Tensor]:
        for model in models.values():
            yield from model.buffers()

    # --- state

    def snapshot(self) -> Snapshot:
        """The state of everything here. Call it on every rank; the main one has it whole."""
        if self.sharded:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            whole: Any = get_state_dict(self.model, self.optimizer.optimizer, options=options)
            weights, optimizer = whole
        else:
            weights, optimizer = self.net.state_dict(), self.optimizer.state_dict()
        ema = None if self.ema is None else self.ema.module.state_dict()
        scaler = self.accelerator.scaler
        return Snapshot(weights, ema, optimizer, scaler.state_dict() if scaler else None)

    def load_optimizer(self, snapshot: Snapshot) -> None:
        if self.sharded:
            options = StateDictOptions(full_state_dict=True)
            inner = self.optimizer.optimizer
            set_optimizer_state_dict(self.model, inner, snapshot.optimizer, options=options)
        else:
            with _of_this_model():
                self.optimizer.load_state_dict(snapshot.optimizer)
        if self.accelerator.scaler is not None and snapshot.scaler is not None:
            self.accelerator.scaler.load_state_dict(snapshot.scaler)

    def _load_weights(self, snapshot: Snapshot) -> None:
        with _of_this_model():
            self.net.load_state_dict(snapshot.weights)
            if self.ema is not None and snapshot.ema is not None:
                self.ema.module.load_state_dict(snapshot.ema)

    def _average(self) -> ModelEmaV3:
        if self.sharded:
            raise RecipeError("model_ema: there is no average of a model in shards (FSDP)")
        recipe = self.recipe
        return ModelEmaV3(
            self.net, decay=recipe.model_ema_decay, use_warmup=recipe.model_ema_warmup
        )


@contextmanager
def _of_this_model() -> Iterator[None]:
    """What does not fit the model is a fault of the checkpoint."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = shorten(" ".join(str(error).split()), 300)
        raise CheckpointError(f"the checkpoint does not fit the model: {text}") from None
