"""What the first moments of a program decide: signals and threads, before torch is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOW = "import os, sys; sys.argv = {argv}; import vit_rpe; print(os.environ.get('GOMP_SPINCOUNT'))"


def spins(*argv: str, **environment: str) -> str:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    own = {key: value for key, value in os.environ.items() if key not in names}
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(argv=list(argv))],
        env=own | environment, capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("argv", [("vit-rpe", "train"), ("train.py",), (str(ROOT / "train.py"),)])
def test_threads_of_training_sleep_soon(argv):
    assert spins(*argv) == "1000"


def test_what_was_set_stays():
    assert spins("train.py", GOMP_SPINCOUNT="7") == "7"
    assert spins("train.py", OMP_WAIT_POLICY="ACTIVE") == "None"


@pytest.mark.parametrize("argv", [("vit-rpe", "recipes"), ("elsewhere/train.py",), ("",)])
def test_other_programs_are_left_alone(argv):
    assert spins(*argv) == "None"
