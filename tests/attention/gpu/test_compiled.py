"""Compiled for GPUs that are not here: what the kernels use, and that a bad one would be seen."""

import os
import subprocess
import sys

import pytest

from vit_rpe.checks import TARGETS, compilations

pytestmark = pytest.mark.slow

NUM_KERNELS = 9  # linear and softmax: forward, query, key, mask; one for tables


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_spills_no_atomics_matrix_units(target, dtype):
    found = list(compilations(target, dtype))
    assert len(found) == 3 * NUM_KERNELS
    assert {x.width for x in found} == {32, 64, 128}
    assert [(x.kernel, x.width, x.problem()) for x in found if x.problem()] == []


def test_float32_as_tf32_compiles():
    """Not judged by what it spills; the page on performance has the numbers."""
    found = list(compilations("sm_80", "float32", (64,)))
    assert len(found) == NUM_KERNELS
    assert all(x.matrix_instructions for x in found if x.kernel != "table")


BAD = """
import torch, triton
import triton.language as tl
from triton.compiler import ASTSource
from vit_rpe.attention.gpu.ahead_of_time import TARGETS, assembly, compiled
from vit_rpe.attention.gpu.configurations import Configuration
import re

@triton.jit
def adding(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(y + i % 4, tl.load(x + i))

source = ASTSource(adding, {"x": "*fp32", "y": "*fp32", "N": "constexpr"}, {"N": 128})
for name in ("sm_80", "sm_100", "gfx942"):
    target = TARGETS[name]
    binary = triton.compile(source, target=target.gpu)
    print(len(re.findall(target.atomics, assembly(binary, target))) > 0)
large = Configuration(64, 64, 4, 1)
print(compiled("key", TARGETS["sm_80"], torch.bfloat16, 64, large).stack > 0)
"""


def test_atomics_and_spills_would_be_seen(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["True"] * 4, done.stderr
