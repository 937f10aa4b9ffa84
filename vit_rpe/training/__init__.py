"""Batches to a trained model. Imports vit_rpe.data alone; models are timm's, by name."""

from .errors import CheckpointError, Diverged, RecipeError, Stopped
from .recipe import Recipe
from .recipe_file import load_recipe
from .run import main, train

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
