import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Indices of foreign shards go to a folder of the test, not of the user."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VIT_RPE_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _few_cores(recwarn):
    """DataLoader warns of more workers than cores; the tests want three, whatever the machine."""
