"""Files that come with the package, by name: recipes, studies, launch files for accelerate.

They are in `recipes/` of a checkout, and in `vit_rpe/recipes/` of an installed package. Imports
nothing of ours but messages, so that every part of the package may use it.
"""

from __future__ import annotations

from os.path import isfile
from pathlib import Path

from .messages import nearest

HERE = Path(__file__).parent
ENDING = ".yaml"
KINDS = {  # of files, and the folder of each
    "recipe": ".",
    "study": "studies",
    "launch file": "accelerate",
}


def shipped_folder() -> Path:
    """Return the folder of the recipes that came with this package."""
    inside = HERE / "recipes"
    return inside if inside.is_dir() else HERE.parent / "recipes"


def shipped(kind: str = "recipe") -> dict[str, Path]:
    """Return the files of a kind, by name."""
    folder = shipped_folder() / KINDS[kind]
    return {path.stem: path for path in sorted(folder.glob(f"*{ENDING}"))}


def find_shipped(name: str, *kinds: str) -> Path:
    """Return the file of that name, of any of these kinds (default: of all)."""
    found = {key: path for kind in kinds or KINDS for key, path in shipped(kind).items()}
    wanted = name.removesuffix(ENDING)
    if wanted not in found:
        *others, last = kinds or KINDS
        what = f"{', '.join(others)} or {last}" if others else last
        raise FileNotFoundError(f"no {what} {name!r}{nearest(name, found)}")
    return found[wanted]


def find_recipe(path: str | Path, folder: Path = Path("."), kind: str = "recipe") -> Path:
    """Return the file that a path or a name means: one that is there, or one that is shipped."""
    given, name = folder / path, Path(path)
    if name.parent == Path(".") and not isfile(given):  # false for names that no file can have
        return shipped(kind).get(name.name.removesuffix(ENDING), given)
    return given
