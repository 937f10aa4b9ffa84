import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.training.launch import launch

TOOLS = Path(__file__).parents[2] / "tools"


def bench(path: str) -> int:
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("bench_train", TOOLS / "bench_train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(
        ["--models", "quickstart", "--batch", "4", "--seconds", "0.1", "--json", path]
    )


def test_it_compares_the_trainer_with_a_bare_loop(tmp_path):
    path = tmp_path / "train.json"
    launch(bench, str(path))
    (row,) = json.loads(path.read_text())["rows"]
    assert row["model"] == "quickstart" and row["turns"] >= 5
    assert 0 < row["bare_ms"]
    assert row["ratio"] == pytest.approx(row["trainer_ms"] / row["bare_ms"])
