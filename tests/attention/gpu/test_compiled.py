"""Compiled for GPUs that are not here: what the kernels use, and that a bad one would be seen."""

import os
import subprocess
import sys

import pytest

from vit_rpe.checks import TARGETS, Job, compile_jobs
from vit_rpe.checks.compilation import KINDS, WIDTHS, CompilationError

pytestmark = pytest.mark.slow

# Every kind, precision and width once, on one of the targets. `tools/bench/gpu_kernels.py` compiles
# all of them for all targets, and holds them to the same bars.
SQUARE = [
    Job(target, ("bfloat16", "float16")[variant % 2], KINDS[variant // 2], width)
    for row, target in enumerate(TARGETS)
    for column, width in enumerate(WIDTHS)
    for variant in [(row + column) % 4]
]


def test_no_spills_no_atomics_matrix_units():
    assert len({(x.kind, x.dtype, x.width) for x in SQUARE}) == 2 * 2 * 3
    found = list(compile_jobs(SQUARE))
    kernels = {(x.kernel, x.dtype, x.width) for x in found if x.kernel != "table"}
    assert len(kernels) == 8 * 2 * 3  # forward, query, key, mask
    assert {x.target for x in found if x.kernel == "table"} == set(TARGETS)
    assert [(x.kernel, x.target, x.problem()) for x in found if x.problem()] == []


# What a call may ask for besides, each at least once.
OPTIONS = [
    Job("sm_80", "bfloat16", "linear+elu+floor+signed", 64),
    Job("gfx942", "float16", "linear+square+bounded", 32),
    Job("sm_90", "bfloat16", "softmax+bias+bounded", 64),
]


def test_options_compile():
    found = list(compile_jobs(OPTIONS))
    assert len(found) == 5 + 5 + 4
    assert [(x.kernel, x.target, x.problem()) for x in found if x.problem()] == []


def test_float32_as_tf32_compiles():
    """Not judged by what it spills; the page on performance has the numbers."""
    found = list(compile_jobs([Job("sm_80", "float32", "linear", 64)]))
    assert len(found) == 5
    assert all(x.matrix_instructions for x in found if x.kernel != "table")


def test_a_compiler_that_fails_is_named():
    with pytest.raises(CompilationError, match="sm_80, bfloat16: ValueError: .* got 'none such'"):
        list(compile_jobs([Job("sm_80", "bfloat16", "none such", 64)]))


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
