"""A run: what all its parts need to know, in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from vit_rpe.data import Modality, modality_of

from .distributed import accelerator_for
from .errors import RecipeError
from .precision import Precision
from .recipe.schema import Recipe


@dataclass(frozen=True)
class Run:
    """A recipe as it was settled, the processes that train it, its folder and its modality.

    `per_rank` are the samples of one process in one step, `provenance` says where the recipe comes
    from.
    """

    recipe: Recipe
    accelerator: Accelerator
    folder: Path
    modality: Modality
    per_rank: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.accelerator.process_index

    @property
    def world_size(self) -> int:
        return self.accelerator.num_processes

    @property
    def is_main(self) -> bool:
        return self.accelerator.is_main_process

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    @property
    def precision(self) -> Precision:
        return Precision.settled(self.accelerator)

    def with_recipe(self, recipe: Recipe) -> Run:
        """Return this run with a recipe of the same modality that was settled further."""
        return replace(self, recipe=recipe, per_rank=_per_rank(recipe, self.accelerator))


def run_folder(recipe: Recipe) -> Path:
    """Return where a recipe's run is kept."""
    return Path(recipe.output).expanduser() / (recipe.experiment or "run")


def start_run(
    recipe: Recipe, folder: Path | None = None, provenance: Mapping[str, Any] | None = None
) -> Run:
    """Join the processes of a recipe; its folder is made when something is written there."""
    folder = folder or run_folder(recipe)
    run = make_run(recipe, accelerator_for(recipe, folder), folder)
    return replace(run, provenance=provenance or {})


def make_run(recipe: Recipe, accelerator: Accelerator, folder: Path) -> Run:
    """Settle the precision, the modality and the parts of the batch of a run."""
    recipe = recipe.model_copy(update=Precision.settled(accelerator).keys)
    per_rank = _per_rank(recipe, accelerator)
    return Run(recipe, accelerator, folder, modality_for(recipe), per_rank)


def modality_for(recipe: Recipe) -> Modality:
    """Return images or videos, as a recipe says."""
    return modality_of(
        recipe.num_frames,
        stride=recipe.frame_stride,
        clips=recipe.val_clips,
        crops=recipe.val_crops,
        backend=recipe.video_decoder,
    )


def _per_rank(recipe: Recipe, accelerator: Accelerator) -> int:
    try:
        return recipe.per_rank(accelerator.num_processes)
    except ValueError as error:
        raise RecipeError(str(error)) from None
