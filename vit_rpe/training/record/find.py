"""Finding what people name: a run, a checkpoint, a model or a file of weights."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointError
from ..recipe.file import load_recipe
from ..recipe.schema import Recipe
from .checkpoint import Checkpoints
from .integrity import EMA, WEIGHTS, check_weights, read_state

RECIPE = "recipe.yaml"  # of a run, in its folder


def find_checkpoint(path: str | Path, prefer: str = "last") -> Path:
    """Return the checkpoint that a run, a link or a folder means; `prefer` is last or best."""
    given = Path(path).expanduser()
    folder = given / "checkpoints"
    found, _ = Checkpoints(folder).by_age()
    best = read_state(found[0]).ranking if found and prefer == "best" else []
    for candidate in (given, *(folder / name for name in best), *found, folder / prefer):
        if (candidate / WEIGHTS).is_file():
            return candidate.resolve()
    if (given / RECIPE).is_file():
        raise CheckpointError(f"{path} is a run that has no checkpoint yet")
    raise CheckpointError(f"no checkpoint at {path}: neither a run nor a folder with {WEIGHTS}")


def find_model(path: str | Path, ema: bool = True) -> Path:
    """Return the folder that timm loads: the best checkpoint's average if it has one and `ema`."""
    found = find_checkpoint(path, "best")
    found = found / EMA if ema and (found / EMA / WEIGHTS).is_file() else found
    return check_weights(found / WEIGHTS).parent


def find_weights(path: str | Path) -> Path:
    """Return the .safetensors file that a run, a checkpoint or a path means, if it is whole."""
    given = Path(path).expanduser()
    if given.is_file():
        if given.suffix != ".safetensors":
            raise CheckpointError(f"{path}: weights are read from .safetensors files only")
        return check_weights(given)
    return check_weights(find_checkpoint(given, "best") / WEIGHTS)


def is_average(model: Path) -> bool:
    """Return whether a folder from `find_model` holds the moving average of the weights."""
    return model.name == EMA


def run_of(checkpoint: Path) -> Path | None:
    """Return the run of a checkpoint, if it lies where a run keeps its checkpoints."""
    inside = checkpoint.parent.name == "checkpoints"
    run = checkpoint.parent.parent
    return run if inside and (run / RECIPE).is_file() else None


def saved_recipe(checkpoint: Path) -> Recipe:
    """Return the recipe of the run that a checkpoint belongs to."""
    run = run_of(checkpoint)
    if run is None:
        raise CheckpointError(f"{checkpoint} is not in the checkpoints/ of a run with a {RECIPE}")
    return load_recipe(run / RECIPE)
