"""Recipes on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import vit_rpe  # noqa: F401  registers the models


@pytest.fixture
def write(tmp_path):
    def write(name: str = "a.yaml", /, **values) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(values))
        return path

    return write
