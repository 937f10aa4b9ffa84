"""Batches to a trained model and its record. Imports only vit_rpe.data; models are timm's.

The public names are those listed here: to train a recipe, to evaluate, and to find and load what a
run has written.
"""

from .assembly.assemble import assemble
from .assembly.loaders import evaluation_loader
from .assembly.model import build_model, unseen_pixels
from .assembly.train import train
from .cli import main
from .distributed import main_first, make_accelerator, shut_down
from .errors import CheckpointError, Diverged, Miscounted, RecipeError, Stopped
from .evaluation import Evaluation, evaluate
from .recipe.file import load_recipe
from .recipe.schema import Recipe
from .record.find import find_checkpoint, find_model, is_average, run_of, saved_recipe
from .record.meter import peak_memory
from .record.saved_model import class_names, load_model, with_classes
from .run import Run, start_run

__all__ = [
    "CheckpointError",
    "Diverged",
    "Evaluation",
    "Miscounted",
    "Recipe",
    "RecipeError",
    "Run",
    "Stopped",
    "assemble",
    "build_model",
    "class_names",
    "evaluate",
    "evaluation_loader",
    "find_checkpoint",
    "find_model",
    "is_average",
    "load_model",
    "load_recipe",
    "main",
    "main_first",
    "make_accelerator",
    "peak_memory",
    "run_of",
    "saved_recipe",
    "shut_down",
    "start_run",
    "train",
    "unseen_pixels",
    "with_classes",
]
