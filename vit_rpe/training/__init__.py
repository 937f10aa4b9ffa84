"""Batches to a trained model. Imports vit_rpe.data alone; models are timm's, by name."""

from .assembly.assemble import main, train
from .errors import CheckpointError, Diverged, RecipeError, Stopped
from .recipe.file import load_recipe
from .recipe.schema import Recipe

__all__ = [
    "CheckpointError",
    "Diverged",
    "Recipe",
    "RecipeError",
    "Stopped",
    "load_recipe",
    "main",
    "train",
]
