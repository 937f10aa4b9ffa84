"""timm's optimizers and schedules; the learning rate is a function of the step and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from timm.optim._optim_factory import create_optimizer_v2, get_optimizer_class
from timm.scheduler.scheduler_factory import create_scheduler_v2
from timm.utils.agc import adaptive_clip_grad
from torch import Tensor, nn

from vit_rpe.data import Purpose, torch_generator

from ..errors import RecipeError
from ..recipe.schema import Recipe


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of a recipe."""
    _check_betas(recipe)
    options: dict[str, Any] = dict(recipe.opt_kwargs)
    if recipe.opt_eps is not None:
        options["eps"] = recipe.opt_eps
    if recipe.opt_betas is not None:
        options["betas"] = tuple(recipe.opt_betas)
    try:
        return create_optimizer_v2(
            model,
            opt=recipe.opt,
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            layer_decay=recipe.layer_decay,
            **options,
        )
    except (TypeError, ValueError, AssertionError, IndexError, RuntimeError) as error:
        raise RecipeError(f"opt: {recipe.opt} with {options}: {error}") from None


def _check_betas(recipe: Recipe) -> None:
    """Compare the number of betas with the optimizer's own: it would notice in its first step."""
    kind = get_optimizer_class(recipe.opt.lower().removeprefix("lookahead_"), bind_defaults=False)
    own = signature(kind).parameters.get("betas")
    if recipe.opt_betas is None or own is None or own.default is own.empty:
        return
    if len(recipe.opt_betas) != len(own.default):
        raise RecipeError(
            f"opt_betas: {recipe.opt} has {len(own.default)}, got {len(recipe.opt_betas)}"
        )


def seed_optimizer(optimizer: Any, device: torch.device, *key: int) -> None:
    """Seed an optimizer that draws (adahessian) by (seed, step), the same on all ranks."""
    if isinstance(getattr(optimizer, "generator", None), torch.Generator):
        optimizer.generator = torch_generator(device, Purpose.OPTIMIZER, *key)


class Schedule:
    """The learning rate at any step; a checkpoint needs no state of it.

    All of timm's schedules but plateau are functions of the step; plateau is one of the metrics
    of the epochs so far, which are shown to it again when a run is resumed.
    """

    def __init__(self, recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int):
        self._by_metric = recipe.sched == "plateau"
        try:
            self._scheduler, self.epochs = self._made(recipe, optimizer, steps_per_epoch)
            for step in range(0, self.epochs * steps_per_epoch, steps_per_epoch):
                self.at(step)
            self.at(0)
        except (ValueError, ArithmeticError, IndexError, TypeError) as error:
            raise RecipeError(f"sched: {recipe.sched} has no learning rate: {error}") from None

    def _made(
        self, recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int
    ) -> tuple[Any, int]:
        scheduler, epochs = create_scheduler_v2(
            optimizer,
            sched=recipe.sched,
            num_epochs=recipe.epochs,
            decay_epochs=recipe.decay_epochs,  # pyright: ignore  timm means float
            decay_milestones=recipe.decay_milestones,
            cooldown_epochs=recipe.cooldown_epochs,
            patience_epochs=recipe.patience_epochs,
            decay_rate=recipe.decay_rate,
            min_lr=recipe.min_lr,
            warmup_lr=recipe.warmup_lr,
            warmup_epochs=recipe.warmup_epochs,  # pyright: ignore
            warmup_prefix=recipe.warmup_prefix,
            noise=recipe.lr_noise,  # pyright: ignore
            noise_pct=recipe.lr_noise_pct,
            noise_seed=recipe.seed,
            cycle_mul=recipe.lr_cycle_mul,
            cycle_decay=recipe.lr_cycle_decay,
            cycle_limit=recipe.lr_cycle_limit,
            k_decay=recipe.lr_k_decay,
            plateau_mode="min" if recipe.eval_metric == "loss" else "max",
            step_on_epochs=self._by_metric,
            updates_per_epoch=steps_per_epoch,
        )
        return scheduler, int(epochs)  # 90.0 where a warmup of 32.0 epochs comes first

    def at(self, step: int) -> None:
        """Set the learning rate of a step."""
        assert self._scheduler is not None
        self._scheduler.step_update(step)

    def after_epoch(self, epochs_done: int, metric: float | None) -> None:
        """Record the metric of an epoch, one after the other; only plateau uses it."""
        if self._by_metric:
            assert self._scheduler is not None
            self._scheduler.step(epochs_done, metric)


def clip_gradients(parameters: Sequence[Tensor], value: float, mode: str) -> None:
    """Clip in the modes that accelerate does not have: each value, or each unit's norm."""
    if mode == "value":
        torch.nn.utils.clip_grad_value_(parameters, value)
    else:
        assert mode == "agc"
        adaptive_clip_grad(parameters, value)
