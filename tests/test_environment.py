"""docs/environment.md has every variable that the code reads, and no others of ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "environment.md").read_text()
OURS = re.compile(r"\bVIT_RPE_[A-Z_]*[A-Z]\b")
OTHERS = "Of others, and read here"


def named(text: str) -> set[str]:
    """The variables in the first cells of tables."""
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def read(source: str) -> set[str]:
    """The variables that a source reads from os.environ, by a name as it stands or a constant's."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {
        str(key.value if isinstance(key, ast.Constant) else constants[ast.unparse(key)])
        for key in _keys(tree)
    }


def _keys(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[key, *_]):
                if ast.unparse(value) == "os.environ" or (ast.unparse(value), name) == (
                    "os",
                    "getenv",
                ):
                    yield key
            case ast.Subscript(value=value, slice=key) if ast.unparse(value) == "os.environ":
                yield key
            case ast.Compare(left=key, comparators=[value]) if ast.unparse(value) == "os.environ":
                yield key


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nos.environ.get('A')", {"A"}),
        ("import os\nos.getenv('A', '1')", {"A"}),
        ("import os\nE = 'B'\ndef f():\n    return os.environ[E]", {"B"}),
        ("import os\n'C' in os.environ", {"C"}),
        ("import os\n{**os.environ}", set()),
    ],
)
def test_the_rule_sees_every_form_of_reading(source, expected):
    assert read(source) == expected


def test_every_variable_of_ours_is_on_the_page_and_no_other():
    files = [*ROOT.glob("Makefile"), *ROOT.glob(".ci/*")]
    for folder in ("vit_rpe", "tools", "tests"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in {".py", ".cpp", ".h", ".js"}]
    found = {name for file in files for name in OURS.findall(file.read_text())}
    assert found == set(OURS.findall(TEXT)) == {name for name in named(TEXT) if OURS.match(name)}


def test_every_variable_that_the_package_reads_is_on_the_page():
    sources = [file.read_text() for file in (ROOT / "vit_rpe").rglob("*.py")]
    found = {name for source in sources for name in read(source)}
    assert {name for name in found if not OURS.match(name)} == named(section(OTHERS))


def test_tools_read_only_what_is_on_the_page():
    found = {name for file in (ROOT / "tools").rglob("*.py") for name in read(file.read_text())}
    assert found <= set(re.findall(r"`(\w+)`", TEXT))
