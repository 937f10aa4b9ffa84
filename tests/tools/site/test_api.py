"""A page for each room of the package, with its public names."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import vit_rpe
from tools.site.api import api_pages, public_names

PACKAGE = Path(vit_rpe.__file__).parent
PAGES = api_pages(PACKAGE)


def test_every_room_that_the_package_names_has_a_page():
    rooms = {name for name in vit_rpe.__all__ if not name.startswith("__")}
    assert rooms < {Path(path).stem for path in PAGES} and all(p.startswith("api/") for p in PAGES)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_the_public_names_of_its_room(path):
    module = f"vit_rpe.{Path(path).stem}"
    expected = f"# {module}\n\n::: {module}\n    options:\n      members: "
    assert PAGES[path].startswith(expected)
    assert ast.literal_eval(PAGES[path].removeprefix(expected)) == import_module(module).__all__


def test_a_file_without_public_names_has_none(tmp_path):
    (tmp_path / "one.py").write_text("from x import y\n")
    assert public_names(tmp_path / "one.py") == []
