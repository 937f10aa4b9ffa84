import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def self_check():
    return import_module("vit_rpe.cli.check")


@pytest.mark.slow
def test_the_tool_passes_and_draws(tmp_path):
    output = tmp_path / "masks.png"
    command = [sys.executable, TOOLS / "self_check.py", "--grid", "4", "5", "--output", output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout and "4 x 5 grid and a class token, 21 tokens" in done.stdout
    assert str(output) in done.stdout and output.exists()


def test_every_path_is_checked(self_check):
    softmax, results = self_check.check_grid((3, 4))
    assert softmax > 0
    paths = {(result.mask, result.path.split()[0]) for result in results}
    for mask in ("OffsetRPE", "DistanceRPE", "ExponentialRPE", "ExponentialRPE, 1-sided"):
        for path in ("explicit", "product", "auto"):
            assert (mask, path) in paths
    assert ("ExponentialRPE", "scan") in paths and ("OffsetRPE", "scan") not in paths
    assert all(result.passed() for result in results)


def test_a_wrong_path_fails(self_check, monkeypatch, capsys):
    right = self_check.masked_linear_attention

    def wrong(*args, path, **options):
        return right(*args, path=path, **options) * (1.001 if path == "product" else 1.0)

    monkeypatch.setattr(self_check, "masked_linear_attention", wrong)
    assert self_check.main(["--grid", "3", "4"]) == 1
    assert "FAIL: 4 of 14" in capsys.readouterr().out


def test_nan_is_a_failure(self_check):
    assert not self_check.Result("mask", "path", float("nan"), 1.0).passed()
