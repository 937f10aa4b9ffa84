"""The version is the same wherever it stands, and the changelog knows it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import vit_rpe

ROOT = Path(__file__).parents[1]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    text = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)
    assert released[0] == (vit_rpe.__version__, str(citation["date-released"]))
    assert citation["version"] == vit_rpe.__version__
    assert sorted(released, key=lambda each: each[1], reverse=True) == released


def test_changes_that_are_not_released_have_their_section_on_top():
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
