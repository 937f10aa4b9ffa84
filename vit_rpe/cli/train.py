"""Train a timm model by a recipe: begin a run, or resume one.

    vit-rpe train --recipe quickstart
    vit-rpe train --recipe quickstart experiment=few epochs=5 lr=1e-3
    vit-rpe train --recipe mine.yaml resume=auto
    vit-rpe train --recipe quickstart --dry-run
    accelerate launch --config_file $(vit-rpe recipes path cpu_x2) -m vit_rpe train --recipe NAME

A recipe is a YAML file, or the name of one that is shipped (vit-rpe recipes list). Exit codes:
0 finished, 1 an error of the program, 2 recipe, checkpoint or data are wrong, 3 diverged, 4 a
process was stuck, 75 stopped by a signal and saved (resume=auto continues), 130 a second Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from vit_rpe.data import FolderBusy, ShardError
from vit_rpe.extras import MissingExtra
from vit_rpe.messages import entry
from vit_rpe.program import program, typed
from vit_rpe.training import (
    CheckpointError,
    Diverged,
    Miscounted,
    Recipe,
    RecipeError,
    Stopped,
    dry_run,
    load_recipe,
    provenance,
    recipe_table,
    run_folder,
    say,
    shut_down,
    train,
)

from .command_line import (
    DIVERGED,
    DONE,
    FAILED,
    INTERRUPTED,
    STOPPED,
    WRONG,
    Parser,
    command_parser,
)
from .reporting import add_report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parse(argv)
    if args.help_recipe:
        print(recipe_table())
        return DONE
    code = _run(args)
    if code in (DONE, DIVERGED) and not args.dry_run:
        _report(args)
    return code


def _run(args: argparse.Namespace) -> int:
    name = program("train")
    try:
        recipe = load_recipe(args.recipe, args.overrides)
        if args.dry_run:
            dry_run(recipe)
        else:
            train(recipe, provenance(args.recipe, args.overrides))
            say(_next(args, recipe))
        return DONE
    except (RecipeError, CheckpointError, FolderBusy, MissingExtra) as error:  # on all ranks alike
        say(f"{name}: error: {error}")
        return WRONG
    except (ShardError, OSError) as error:
        say(f"{name}: error: {error}", every_rank=True)
        return WRONG
    except Miscounted as error:
        say(f"{name}: error in the program: {error}")
        return FAILED
    except Diverged as error:
        say(f"{name}: diverged: {error}")
        return DIVERGED
    except Stopped as error:
        say(f"{error}; resume=auto continues from there{_again(args)}")
        return STOPPED
    except KeyboardInterrupt:
        say(
            f"ended by a second Ctrl-C; resume=auto continues from the last checkpoint"
            f"{_again(args)}"
        )
        return INTERRUPTED
    finally:
        shut_down()


def _report(args: argparse.Namespace) -> None:
    """Make the report of the run, if the recipe wants one; all ranks have parted by now."""
    recipe = load_recipe(args.recipe, args.overrides)

    def make() -> Path:
        from vit_rpe.report import write_report  # when it is wanted: it takes a moment

        return write_report(run_folder(recipe))

    if recipe.report:
        add_report("train", make)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser: Parser = command_parser("train", __doc__)
    add = parser.add_argument
    add("--recipe", metavar="NAME", help="a YAML file, or the name of a shipped recipe")
    add("overrides", nargs="*", metavar="key=value", help="keys of the recipe to change")
    add("--dry-run", action="store_true", help="check everything with one small batch, then stop")
    add("--help-recipe", action="store_true", help="print all keys of a recipe")
    args = parser.parse_intermixed_args(argv)
    if not args.help_recipe and args.recipe is None:
        parser.error("--recipe is required (quickstart is a good first one)")
    return args


def _again(args: argparse.Namespace) -> str:
    """Return the command that resumes; with several processes its launcher is not known."""
    return "" if _launched() else f": {_resumed(args)}"


def _launched() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _resumed(args: argparse.Namespace, *changes: str) -> str:
    changed = {each.partition("=")[0] for each in ("resume=auto", *changes)}
    kept = [each for each in args.overrides if each.partition("=")[0] not in changed]
    return typed("train", "--recipe", args.recipe, *kept, "resume=auto", *changes)


def _next(args: argparse.Namespace, recipe: Recipe) -> str:
    """Return what to do with a finished run, as one would type it."""
    run = run_folder(recipe)
    split, usual = recipe.val_split, "val"
    if recipe.val_fraction:  # the part that was held out, and not yet what is for the end
        split, usual = recipe.train_split, "train"
    more = () if split in (None, usual) else ("--split", split)
    part = ("--val-fraction",) if recipe.val_fraction else ()
    longer = f"epochs={2 * recipe.epochs}"
    again = f"the same command with resume=auto {longer}" if _launched() else _resumed(args, longer)
    return entry(
        "next",
        typed("evaluate", "--checkpoint", run, "--data", recipe.data_dir, *more, *part),
        typed("predict", "FILE", "--checkpoint", run),
        f"{again}   # more epochs",
    )
