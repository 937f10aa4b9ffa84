"""What mkdocs calls: pages from outside docs/ join the site, and links lead to where files are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tools.site.api import FOLDER, api_pages
from tools.site.links import DOCS, PAGES, for_site, in_site, outside, with_titles

ROOT = Path(__file__).parents[2]
API = api_pages(ROOT / "vit_rpe")
# A git host lets a list follow a line of text; Python-Markdown wants an empty line between them.
_BEFORE_LIST = re.compile(r"^(?![-\s]).*\S$(?=\n- )", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put the API pages where the navigation has an empty list for them."""
    for group in config.nav:
        for entry in next(iter(group.values())):
            if isinstance(entry, dict) and "API" in entry:
                entry["API"] = [{Path(path).stem: path} for path in API]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root, what they link to, and the API."""
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    for path, text in API.items():
        files.append(File.generated(config, path, content=text))
    for path in [*PAGES, *outside(ROOT)]:
        files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn links between files into links between pages, by their titles; make lists lists."""
    path = page.file.src_uri
    if path.startswith(f"{FOLDER}/"):
        return markdown
    sources = {target: source for source, target in PAGES.items()}
    text = for_site(_BEFORE_LIST.sub(r"\g<0>\n", markdown), sources.get(path, f"{DOCS}/{path}"))
    return with_titles(text, titles(config.nav))


def titles(nav: Any) -> dict[str, str]:
    """Return the titles of pages in a navigation, by their paths."""
    found: dict[str, str] = {}
    for entry in nav:
        for title, inside in entry.items():
            found |= {inside: title} if isinstance(inside, str) else titles(inside)
    return found
