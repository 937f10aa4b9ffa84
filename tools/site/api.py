"""The API pages: one for each room of the package, with the names in its `__all__`.

Sources are read, not imported: the site is built without torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDER = "api"
# What other packages may import besides the rooms themselves (CONTRIBUTING.md).
BELOW = ("data.making", "data.shards", "masks.helpers")


def api_pages(package: Path) -> dict[str, str]:
    """Return the pages as Markdown, by their path in the site."""
    return {f"{FOLDER}/{name}.md": _page(f"{package.name}.{name}") for name in rooms(package)}


def rooms(package: Path) -> list[str]:
    """Return the modules that have a page: packages with public names, and BELOW."""
    return sorted([path.parent.name for path in package.glob("*/__init__.py") if names(path)] + [*BELOW])


def names(path: Path) -> list[str]:
    """Return the `__all__` of a file, empty where it has none."""
    return next(_lists(ast.parse(path.read_text())), [])


def _lists(tree: ast.Module) -> Iterator[list[str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield ast.literal_eval(node.value)


def _page(module: str) -> str:
    return f"# {module}\n\n::: {module}\n"
