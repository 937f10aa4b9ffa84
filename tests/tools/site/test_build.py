"""The site is built without a warning, complete, and asks no network: in files and in a browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.site.api import api_pages

for name in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(name, reason=f"{name} is not installed: make docs installs the extra docs")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# What a browser would fetch: sources of elements, style sheets, fonts.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'> ]+)"
    r"|url\([\"']?((?:https?:)?//[^)]+)|@import\s+[\"']((?:https?:)?//[^\"']+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_the_rule_sees_what_a_browser_fetches():
    assert FETCHED.search('<script async src="https://a.org/x.js">')
    assert FETCHED.search("<link rel=stylesheet href=//a.org/x.css>")
    assert FETCHED.search("@font-face{src:url(https://a.org/f.woff)}")
    assert not FETCHED.search('<a href="https://a.org">') and not FETCHED.search("url(../f.woff)")


def test_nothing_is_fetched_from_elsewhere(site):
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    found = {path.name: FETCHED.findall(path.read_text()) for path in files}
    assert len(files) > 40 and not {name: each for name, each in found.items() if each}


@pytest.mark.parametrize("path", api_pages(ROOT / "vit_rpe"))
def test_every_public_name_is_explained(site, path):
    room = Path(path).stem
    text = (site / "api" / f"{room}.html").read_text()
    [members] = re.findall(r"members: (\[.*\])", api_pages(ROOT / "vit_rpe")[path])
    missing = [n for n in re.findall(r"'(\w+)'", members) if f'id="vit_rpe.{room}.{n}"' not in text]
    assert not missing


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("VIT_RPE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium (or Chrome)")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()


def opened(browser, path: Path, **options):
    """A page that was opened as a file, and what it asked for or complained of."""
    page, outside = browser.new_page(**options), []
    page.on("request", lambda each: outside.append(each.url) if "file:" not in each.url else None)
    page.on("console", lambda message: outside.append(message.text))
    page.on("pageerror", lambda error: outside.append(str(error)))
    page.goto(f"file://{path}")
    return page, outside


def test_search_finds_pages_that_were_opened_as_files(site, browser):
    page, outside = opened(browser, site / "api" / "masks.html")
    # key by key: the theme listens to keys, and a value that is filled in makes none
    page.locator("input[name=query]").press_sequentially("initial_checkpoint")
    found = ".md-search-result__item a[href*='finetuning.html']"  # results come bit by bit
    page.wait_for_selector(found, state="attached", timeout=90_000)
    assert outside == []
    page.close()


def test_pages_fit_a_phone(site, browser):
    pages = sorted({*site.rglob("*.html")} - {site / "404.html"})  # a server would send that one
    page, outside = opened(browser, pages[0], viewport={"width": 390, "height": 844})
    wide = []
    for path in pages:
        page.goto(f"file://{path}")
        wide += [path.name] * page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide and outside == []
    page.close()


@pytest.mark.parametrize(("theme", "scheme"), [("light", "default"), ("dark", "slate")])
def test_the_theme_is_that_of_the_system(site, browser, theme, scheme):
    page, outside = opened(browser, site / "index.html", color_scheme=theme)
    assert page.get_attribute("body", "data-md-color-scheme") == scheme and outside == []
    page.close()
