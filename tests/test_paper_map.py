"""Every place that docs/paper_map.md names exists, and every row names code and a test."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper_map.md").read_text()
PLACE = re.compile(r"`([\w./-]+\.\w+)(?:::([\w.]+))?`")


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def places(text: str) -> list[tuple[str, str]]:
    return [(path, name) for path, name in PLACE.findall(text) if "/" in path]


@cache
def defined(path: Path) -> set[str]:
    """The functions and classes of a file, and what is defined in its classes: `Class.method`."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, kinds):
            inside = node.body if isinstance(node, ast.ClassDef) else []
            names |= {node.name} | {f"{node.name}.{n.name}" for n in inside if isinstance(n, kinds)}
    return names


def is_there(path: str, name: str) -> bool:
    file = ROOT / path
    return file.is_file() and (not name or name in defined(file))


def test_every_place_exists():
    missing = [f"{path}::{name}" for path, name in places(TEXT) if not is_there(path, name)]
    assert not missing


@pytest.mark.parametrize("row", rows("Implemented"), ids=lambda row: row[0])
def test_what_is_implemented_has_code_and_a_test(row):
    _, _, where, shown = row
    assert places(where) and all(path.startswith("vit_rpe/") for path, _ in places(where))
    assert places(shown) and all(
        path.startswith("tests/") and name.rpartition(".")[2].startswith("test_")
        for path, name in places(shown)
    )


def test_both_tables_are_read():
    assert len(rows("Implemented")) >= 25 and len(rows("Not there yet")) >= 1
    assert all(len(row) == 3 for row in rows("Not there yet"))
