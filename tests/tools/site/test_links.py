"""Links of the repository become links of the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site.links import for_site, in_site, outside

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "docs/data.md#make-shards", "data.md#make-shards"),
        ("README.md", "docs/masks.png", "masks.png"),
        ("README.md", "CONTRIBUTING.md", "contributing.md"),
        ("CHANGELOG.md", "docs/report.md", "report.md"),
        ("docs/faq.md", "data.md", "data.md"),
        ("docs/faq.md", "../README.md#install", "index.md#install"),
        ("docs/faq.md", "../CITATION.cff", "CITATION.cff"),
        ("docs/faq.md", "../recipes/quickstart.yaml", "recipes/quickstart.yaml"),
        ("docs/faq.md", "#data", "#data"),
        ("docs/faq.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_a_link_leads_to_where_its_file_is(source, link, expected):
    text = "before [words]({}) after ![picture]({})"
    assert for_site(text.format(link, link), source) == text.format(expected, expected)


def test_what_pages_link_to_outside_docs_is_in_the_site_too():
    assert {"LICENSE", "CITATION.cff"} <= outside(ROOT)
    assert all((ROOT / path).is_file() and in_site(path) == path for path in outside(ROOT))
