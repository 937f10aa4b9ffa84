"""The site has every page, in its navigation and in README; what it needs is pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tools.site import hooks
from tools.site.links import PAGES

ROOT = Path(__file__).parents[3]


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, in which one value is a Python function."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)  # noqa: S506


def pages(nav: Any) -> list[str]:
    return sorted(hooks.titles(nav))


def test_every_page_is_in_the_navigation():
    written = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert pages(CONFIG["nav"]) == sorted([*written, *PAGES.values()])


def test_the_api_pages_join_the_navigation():
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]  # noqa: S506
    filled = hooks.on_config(SimpleNamespace(nav=nav)).nav
    assert sorted(set(pages(filled)) - set(pages(CONFIG["nav"]))) == sorted(hooks.API)


def test_readme_names_every_page():
    contents = (
        (ROOT / "README.md").read_text().partition("\n## Contents\n")[2].partition("\n## ")[0]
    )
    linked = re.findall(r"\]\(docs/([\w.]+)\)", contents)
    assert sorted(linked) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](docs/data.md)", "[a](data.md)"),
        ("faq.md", "[a](../README.md#install)", "[a](index.md#install)"),
        ("index.md", "[docs/faq.md](docs/faq.md)", "[Questions](faq.md)"),
        ("data.md", "[faq.md](faq.md#data)", "[Questions](faq.md#data)"),
        ("changelog.md", "**Data**\n- one\n  more\n- two", "**Data**\n\n- one\n  more\n- two"),
        ("api/masks.md", "[a](docs/data.md)", "[a](docs/data.md)"),
    ],
)
def test_pages_have_the_links_of_their_place_and_lists_that_are_seen(page, text, expected):
    file, config = SimpleNamespace(src_uri=page), SimpleNamespace(nav=CONFIG["nav"])
    assert hooks.on_page_markdown(text, SimpleNamespace(file=file), config) == expected


def test_the_extra_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[><=]", each)[0] for each in project["optional-dependencies"]["docs"]}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert wanted and wanted <= pinned
