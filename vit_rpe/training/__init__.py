"""Batches to a trained model and its record. Imports only vit_rpe.data; models are timm's.

The public names are those listed here: to train a recipe, to evaluate, and to find and load what a
run has written.
"""

from vit_rpe.extras import require_extra

require_extra("train", "vit_rpe.training", "accelerate", "pydantic", "yaml", "tensorboard", "tqdm")

from .assembly.assemble import assemble
from .assembly.dry_run import dry_run
from .assembly.loaders import evaluation_loader, evaluation_transform
from .assembly.model import build_model, unseen_pixels
from .assembly.shards import validation_shards
from .assembly.train import train
from .distributed import choose_device, launched_rank, main_first, make_accelerator, say, shut_down
from .errors import CheckpointError, Diverged, Miscounted, RecipeError, Stopped, Unequal
from .evaluation import Evaluation, class_logits, evaluate
from .exhibits.answers import evaluation_of
from .exhibits.batches import visible
from .exhibits.files import Exhibit, read_exhibits
from .exhibits.masks import as_bytes, from_bytes, offset_tables
from .exhibits.origin import command, git_state, machine, surroundings, versions
from .loop.watch import watched_attention
from .recipe.file import load_recipe, provenance, read_mapping
from .recipe.schema import Recipe
from .recipe.table import table as recipe_table
from .record.evaluation_results import results_folder, results_line, save_results
from .record.find import find_checkpoint, find_model, is_average, run_of, saved_recipe
from .record.log import json_number, read_log, read_summary
from .record.meter import peak_memory
from .record.saved_model import class_names, load_model, with_classes
from .reordering import Reordered, class_order
from .replay.activations import Activations, Range
from .replay.condition import Condition, parse_condition
from .replay.layers import layer_of
from .replay.view import Seen
from .replay.walk import Replayed, replay_step
from .run import Run, run_folder, start_run

__all__ = [
    "Activations",
    "CheckpointError",
    "Condition",
    "Diverged",
    "Evaluation",
    "Exhibit",
    "Miscounted",
    "Range",
    "Recipe",
    "RecipeError",
    "Reordered",
    "Replayed",
    "Run",
    "Seen",
    "Stopped",
    "Unequal",
    "as_bytes",
    "assemble",
    "build_model",
    "choose_device",
    "class_logits",
    "class_names",
    "class_order",
    "command",
    "dry_run",
    "evaluate",
    "evaluation_loader",
    "evaluation_of",
    "evaluation_transform",
    "find_checkpoint",
    "find_model",
    "from_bytes",
    "git_state",
    "is_average",
    "json_number",
    "launched_rank",
    "layer_of",
    "load_model",
    "load_recipe",
    "machine",
    "main_first",
    "make_accelerator",
    "offset_tables",
    "parse_condition",
    "peak_memory",
    "provenance",
    "read_exhibits",
    "read_log",
    "read_mapping",
    "read_summary",
    "recipe_table",
    "replay_step",
    "results_folder",
    "results_line",
    "run_folder",
    "run_of",
    "save_results",
    "saved_recipe",
    "say",
    "shut_down",
    "start_run",
    "surroundings",
    "train",
    "unseen_pixels",
    "validation_shards",
    "versions",
    "visible",
    "watched_attention",
    "with_classes",
]
