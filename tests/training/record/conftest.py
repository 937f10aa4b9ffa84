"""A run of two epochs, and a copy of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.launch import train
from tests.training.runs import make_data, write_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_recipe(
        folder / "a.yaml", data_dir=make_data(folder / "data"), output=str(folder), epochs=2
    )
    code, shown = train("--recipe", str(folder / "a.yaml"))
    assert code == 0, shown
    return folder / "a"


@pytest.fixture
def copy(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "a", symlinks=True))
