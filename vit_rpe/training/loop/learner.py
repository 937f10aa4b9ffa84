"""The learner: weights, their average, optimizer, schedule and precision, on one rank or many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from textwrap import shorten
from typing import Any

import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from vit_rpe.data import seed_model

from ..distributed import (
    broadcast_buffers,
    gather_state,
    is_sharded,
    scatter_optimizer_state,
)
from ..errors import CheckpointError, RecipeError
from ..record.checkpoint import Snapshot
from ..run import Run
from .optim import Schedule, clip_gradients, make_optimizer, seed_optimizer
from .task import Task


class Learner:
    """A model and all that changes when it makes a step; `snapshot` is a state to resume from.

    `net` is the plain model, `model` what accelerate makes of it: the same, DDP or FSDP.
    """

    def __init__(
        self,
        run: Run,
        net: nn.Module,
        steps_per_epoch: int,
        snapshot: Snapshot | None = None,
    ):
        recipe, accelerator = run.recipe, run.accelerator
        self.recipe, self.accelerator, self.rank = recipe, accelerator, run.rank
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
        """The largest learning rate: with layer decay that of the last layer."""
        return max(group["lr"] for group in self.optimizer.param_groups)

    # --- one step

    def backward(self, task: Task, images: Tensor, targets: Tensor, step: int) -> Tensor:
        """Compute the gradients of this rank's batch, piece by piece; return its mean loss."""
        recipe, accelerator = self.recipe, self.accelerator
        self.model.train()
        if recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        pieces, size = recipe.grad_accum_steps, len(images)
        loss = torch.zeros((), device=images.device)
        parts = zip(images.chunk(pieces), targets.chunk(pieces), strict=True)
        for piece, (x, y) in enumerate(parts, 1):
            # dropout and stochastic depth draw from here: resuming needs no state of generators
            seed_model(recipe.seed, step, piece, self.rank)
            with nullcontext() if piece == pieces else accelerator.no_sync(self.model):
                with accelerator.autocast():
                    part = task.loss(self.model, x, y) / size
                accelerator.backward(part, create_graph=self.second_order)
            loss = loss + part.detach()
        return loss

    def clip(self) -> Tensor:
        """Clip the gradient as the recipe says; return its norm before."""
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
        """Return whether a step was not finite only because float16 was scaled too far."""
        scaler = self.accelerator.scaler
        return scaler is not None and math.isfinite(loss) and scaler.get_scale() >= 1

    # --- evaluation

    def models(self) -> dict[str, nn.Module]:
        """Return the models to evaluate, by the prefix of their metrics, the same on every rank."""
        found = {"eval": self.model if self.sharded else self.net}
        if self.ema is not None:
            found["ema"] = self.ema.module
        if not self.sharded:
            broadcast_buffers(self.accelerator, found.values())
        return found

    # --- state

    def snapshot(self) -> Snapshot:
        """Return the whole state on the main process; call it on every rank."""
        if self.sharded:
            weights, optimizer = gather_state(self.model, self.optimizer.optimizer)
        else:
            weights, optimizer = self.net.state_dict(), self.optimizer.state_dict()
        ema = None if self.ema is None else self.ema.module.state_dict()
        scaler = self.accelerator.scaler
        return Snapshot(weights, ema, optimizer, scaler.state_dict() if scaler else None)

    def load_optimizer(self, snapshot: Snapshot) -> None:
        """Load the state of the optimizer and the scaler, once the model is wrapped."""
        if self.sharded:
            inner = self.optimizer.optimizer
            scatter_optimizer_state(self.model, inner, snapshot.optimizer)
        else:
            with _blaming_the_checkpoint():
                self.optimizer.load_state_dict(snapshot.optimizer)
        if self.accelerator.scaler is not None and snapshot.scaler is not None:
            self.accelerator.scaler.load_state_dict(snapshot.scaler)

    def _load_weights(self, snapshot: Snapshot) -> None:
        with _blaming_the_checkpoint():
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
def _blaming_the_checkpoint() -> Iterator[None]:
    """Turn an error in loading a state into a CheckpointError."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = shorten(" ".join(str(error).split()), 300)
        raise CheckpointError(f"the checkpoint does not fit the model: {text}") from None
