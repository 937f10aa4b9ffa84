"""Imports point down: which folder of vit_rpe may import which."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vit_rpe"
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
}
ALLOWED["report"] = set(ALLOWED)
OUTSIDE = {"tools", "tests", "train"}  # run by hand; nothing in the package imports them


def imported(source: str, module: tuple[str, ...]) -> set[str]:
    """Folders of vit_rpe, and names in OUTSIDE, that the source of a module imports."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: -node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            names += [[*base, alias.name] for alias in node.names]
    ours = {name[1] for name in names if name[0] == "vit_rpe" and len(name) > 1}
    return (ours & set(ALLOWED)) | ({name[0] for name in names} & OUTSIDE)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.glob("*/**/*.py")), ids=lambda p: f"{p.parent.name}.{p.stem}"
)
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
