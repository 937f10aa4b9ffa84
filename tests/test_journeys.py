"""A piece of work passes through few files, and CONTRIBUTING.md tells which."""

import pytest

from tests.journeys import JOURNEYS, text, written

# A graph passes 26: plan, structure and the compiled blocks of attention are among them.
MOST = {"A mask": 18, "A training step": 20, "A graph": 26}


@pytest.mark.parametrize("name", JOURNEYS)
def test_few_files(name):
    files = JOURNEYS[name]()
    assert 10 < len(files) <= MOST[name], files


def test_the_guide_tells_them():
    assert written() == text(), "run `python -m tests.journeys`"
