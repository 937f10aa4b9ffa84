import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    """Indices of shards go to a folder of the tests, not of the user; before a process starts."""
    before = os.environ.get("VIT_RPE_CACHE")
    os.environ["VIT_RPE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["VIT_RPE_CACHE"]
    if before is not None:
        os.environ["VIT_RPE_CACHE"] = before
