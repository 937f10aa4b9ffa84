"""The command line of `train.py`, and the exit code of each way in which a run can end."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from typing import NoReturn

from vit_rpe.data import FolderBusy, ShardError
from vit_rpe.extras import MissingExtra

from .assembly.dry_run import dry_run
from .assembly.train import train
from .distributed import say, shut_down
from .errors import CheckpointError, Diverged, Miscounted, RecipeError, Stopped
from .recipe.file import load_recipe
from .recipe.table import table

DONE, FAILED, WRONG, DIVERGED, STOPPED = 0, 1, 2, 3, 75  # 75 is EX_TEMPFAIL: try again
INTERRUPTED = 128 + signal.SIGINT  # as a shell says it; loop/pulse.py has STUCK


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parse(argv)
    if args.help_recipe:
        print(table())
        return DONE
    try:
        recipe = load_recipe(args.recipe, args.overrides)
        if args.dry_run:
            dry_run(recipe)
        else:
            train(recipe)
        return DONE
    except (RecipeError, CheckpointError, FolderBusy, MissingExtra) as error:  # on all ranks alike
        say(f"train.py: error: {error}")
        return WRONG
    except (ShardError, OSError) as error:
        say(f"train.py: error: {error}", every_rank=True)
        return WRONG
    except Miscounted as error:
        say(f"train.py: error in the program: {error}")
        return FAILED
    except Diverged as error:
        say(f"train.py: diverged: {error}")
        return DIVERGED
    except Stopped as error:
        say(f"{error}; resume=auto continues from there")
        return STOPPED
    except KeyboardInterrupt:
        say("ended by a second Ctrl-C; resume=auto continues from the last checkpoint")
        return INTERRUPTED
    finally:
        shut_down()


class _Parser(argparse.ArgumentParser):
    """A parser whose errors have one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: error: {message}\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="train.py", description="Train a timm model by a recipe.")
    add = parser.add_argument
    add("--recipe", help="a YAML file; recipes/ has some")
    add("overrides", nargs="*", metavar="key=value", help="keys of the recipe to change")
    add("--dry-run", action="store_true", help="check everything with one small batch, then stop")
    add("--help-recipe", action="store_true", help="print all keys of a recipe")
    args = parser.parse_intermixed_args(argv)
    if not args.help_recipe and args.recipe is None:
        parser.error("--recipe is required (recipes/quickstart.yaml is a good first one)")
    return args
