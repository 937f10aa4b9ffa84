"""A long run, and processes that are gone after a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.training import launch
from tests.training.runs import make_data, write_recipe


@pytest.fixture
def recipe(tmp_path) -> str:
    values = {"data_dir": make_data(tmp_path / "data"), "output": str(tmp_path), "resume": "auto"}
    return write_recipe(tmp_path / "a.yaml", **values, epochs=4000, workers=1)


@pytest.fixture
def begin() -> Iterator[Callable[..., tuple[list[Any], list[Any]]]]:
    """Processes that are gone after the test, whatever came of it."""
    started: list[Any] = []

    def start(*args: Any, **options: Any) -> tuple[list[Any], list[Any]]:
        processes, pipes = launch.begin(*args, **options)
        started.extend(processes)
        return processes, pipes

    yield start
    for process in started:
        process.kill()
