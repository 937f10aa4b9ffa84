import json
from importlib import import_module

import pytest

from tests.training.launch import launch


def bench(path: str) -> int:
    return import_module("tools.bench.train").main(
        ["--models", "quickstart", "--batch", "4", "--seconds", "0.1", "--json", path]
    )


def test_it_compares_the_trainer_with_a_bare_loop(tmp_path):
    path = tmp_path / "train.json"
    [code] = launch(bench, str(path))
    (row,) = json.loads(path.read_text())["rows"]
    assert row["model"] == "quickstart" and row["turns"] >= 5
    assert 0 < row["bare_ms"]
    assert row["ratio"] == pytest.approx(row["trainer_ms"] / row["bare_ms"])
    assert code == (row["ratio"] > 1.05)
