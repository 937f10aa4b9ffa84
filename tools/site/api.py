"""The API pages: one for each room of the package, with the names in its `__all__`.

Sources are read, not imported: the site is built without torch.
"""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = "api"
# What other packages may import besides the rooms themselves (CONTRIBUTING.md).
BELOW = ("data.making", "data.shards", "masks.helpers")


def api_pages(package: Path) -> dict[str, str]:
    """Return the pages as Markdown, by their path in the site."""
    rooms = [path.parent.name for path in package.glob("*/__init__.py") if public_names(path)]
    pages = {}
    for room in sorted([*rooms, *BELOW]):
        place = package.joinpath(*room.split("."))
        names = public_names(place / "__init__.py" if place.is_dir() else place.with_suffix(".py"))
        pages[f"{FOLDER}/{room}.md"] = _page(f"{package.name}.{room}", names)
    return pages


def public_names(path: Path) -> list[str]:
    """Return the `__all__` of a file, empty where it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def _page(module: str, names: list[str]) -> str:
    return f"# {module}\n\n::: {module}\n    options:\n      members: {names}\n"
