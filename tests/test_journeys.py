"""A piece of work passes through few files, and CONTRIBUTING.md tells which."""

import pytest

from tests.journeys import JOURNEYS, text, written

# A graph passes 24: attention's plan and structure and the blocks of small graphs are among them.
MOST = {"A mask": 18, "A training step": 20, "A graph": 24}


@pytest.mark.parametrize("name", JOURNEYS)
def test_few_files(name):
    files = JOURNEYS[name]()
    assert 10 < len(files) <= MOST[name], files


def test_the_guide_tells_them():
    assert written() == text(), "run `python -m tests.journeys`"
