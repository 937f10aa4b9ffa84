"""The rooms of the house: who may import whom, and how large a room is."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = Path(__file__).parents[1] / "vit_rpe"
MOST_MODULES = 15
ALLOWED = {
    "masks": set(),
    "features": set(),
    "data": set(),
    "rpe": {"masks", "features"},
    "attention": {"masks", "features"},
    "training": {"data"},
    "layers": {"masks", "features", "rpe", "attention"},
    "models": {"masks", "features", "rpe", "attention", "layers"},
    "graph": {"masks", "features", "attention"},
    "inference": {"data", "training"},
    "checks": {"masks", "features", "attention"},
}
ALLOWED["report"] = {*ALLOWED}
ALLOWED["experiments"] = {*ALLOWED}
ALLOWED["cli"] = {*ALLOWED}
OUTSIDE = {"tools", "tests", "train"}  # run by hand; nothing in the package imports them
SOURCES = sorted(PACKAGE.glob("*/**/*.py"))
FOLDERS = sorted({path.parent for path in SOURCES})


def named(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def targets(source: str, module: tuple[str, ...]) -> list[list[str]]:
    """What the source of a module imports, as dotted names, split."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: -node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            names += [[*base, alias.name] for alias in node.names]
    return names


def imported(source: str, module: tuple[str, ...]) -> set[str]:
    """Folders of vit_rpe, and names in OUTSIDE, that the source of a module imports."""
    names = targets(source, module)
    ours = {name[1] for name in names if name[0] == "vit_rpe" and len(name) > 1}
    return (ours & set(ALLOWED)) | ({name[0] for name in names} & OUTSIDE)


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_point_down(path):
    module = path.relative_to(PACKAGE.parent).with_suffix("").parts
    folder = module[1]
    assert folder in ALLOWED, f"say in {Path(__file__).name} what {folder} may import"
    wrong = imported(path.read_text(), module) - ALLOWED[folder] - {folder}
    assert not wrong, f"{folder} may import {sorted(ALLOWED[folder])}, but imports {sorted(wrong)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch, vit_rpe.rpe.offset", {"rpe"}),
        ("from vit_rpe import masks, __version__", {"masks"}),
        ("from vit_rpe.masks.base import Mask", {"masks"}),
        ("from ..rpe import OffsetRPE", {"rpe"}),
        ("from .. import graph", {"graph"}),
        ("from . import scan", {"attention"}),
        ("def f():\n    from tools import bench", {"tools"}),
    ],
)
def test_the_rule_sees_every_form_of_import(source, expected):
    assert imported(source, ("vit_rpe", "attention", "cost")) == expected


def private(source: str, module: tuple[str, ...]) -> list[str]:
    """Imports from another room that pass its public names by."""
    wrong = []
    for name in targets(source, module):
        if len(name) < 3 or name[0] != "vit_rpe" or name[1] in (module[1], *OUTSIDE):
            continue
        if name[1] in ALLOWED and name[-1] not in public_names(".".join(name[:-1])):
            wrong.append(".".join(name))
    return wrong


def public_names(dotted: str) -> set[str]:
    """The names that a package, or a module made of public names, offers to others."""
    module = importlib.import_module(dotted)
    return set(getattr(module, "__all__", ()))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_other_rooms_are_known_by_their_public_names(path):
    module = path.relative_to(PACKAGE.parent).with_suffix("").parts
    assert not private(path.read_text(), module)


def test_the_rule_sees_private_names():
    module = ("vit_rpe", "graph", "edges")
    assert private("from vit_rpe.masks.base import Mask", module) == ["vit_rpe.masks.base.Mask"]
    assert private("from vit_rpe.masks import base", module) == ["vit_rpe.masks.base"]
    assert private("from vit_rpe.masks import Mask", module) == []
    assert private("from vit_rpe.masks.helpers import check_rows", module) == []
    assert private("from ..base import GraphMask", (*module[:2], "trees", "forest")) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_rooms_are_small(folder):
    modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(modules) <= MOST_MODULES


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_no_module_is_hidden_by_another_name(folder):
    package = importlib.import_module(".".join(folder.relative_to(PACKAGE.parent).parts))
    modules = {path.stem for path in folder.glob("*.py")}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    found = {name: vars(package).get(name) for name in modules}
    assert not [n for n, x in found.items() if x is not None and not isinstance(x, ModuleType)]
