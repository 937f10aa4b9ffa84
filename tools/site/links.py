"""Links between files of the repository, as they are between pages of the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

DOCS = "docs"
# Pages that stand outside docs/: where they are in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_NAMED = re.compile(r"\[(?:\w+/)?\w+\.md\](?=\((\w+\.md))")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def links_of(text: str, source: str) -> list[str]:
    """Return the files that a file of the repository links to, by their path in it."""
    return [_in_repository(found[1], source) for found in _LINK.finditer(text)]


def for_site(text: str, source: str) -> str:
    """Return the text of a file of the repository with the links that its page has in the site."""
    return _LINK.sub(lambda found: in_site(_in_repository(found[1], source)), text)


def with_titles(text: str, titles: dict[str, str]) -> str:
    """Return a text whose links have the titles of pages in place of the names of files."""
    return _NAMED.sub(lambda found: f"[{titles[found[1]]}]", text)


def in_site(path: str) -> str:
    """Return where a file of the repository is in the site, whose pages are all in one folder."""
    return PAGES.get(path) or path.removeprefix(f"{DOCS}/")


def outside(root: Path) -> set[str]:
    """Return the files besides pages that pages link to and that are not in docs/."""
    sources = [*PAGES, *(f"{DOCS}/{path.name}" for path in (root / DOCS).glob("*.md"))]
    linked = {link for each in sources for link in links_of((root / each).read_text(), each)}
    return {each for each in linked - {*PAGES} if not each.startswith(f"{DOCS}/")}


def _in_repository(link: str, source: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
