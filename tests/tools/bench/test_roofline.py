"""The roofline counts what is launched, what is moved and what is kept; its stub has a backward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from tools.bench.fake_cuda import (
    GPUS,
    Counter,
    DriverError,
    Launch,
    cuda_fakes,
    faked,
    operators,
    register_formula,
    summed,
)
from tools.bench.fake_cuda.counter import _FORMULAS
from tools.bench.fake_cuda.driver import compiled, leave_after

ROOT = Path(__file__).parents[3]


def count(call) -> Counter:
    with cuda_fakes(), Counter() as counter, torch.no_grad():
        call()
    return counter


def test_bytes_and_operations_of_a_product() -> None:
    def call() -> None:
        x = torch.empty(2, 3, 5, device="cuda")
        (x.expand(4, 2, 3, 5)[0].mT @ x).relu_()

    rows = count(call).launches
    assert [row.name for row in rows] == ["aten::bmm", "aten::relu_"]
    product, relu = rows
    assert product.bytes == 4 * (30 + 30 + 2 * 5 * 5) and product.flops == 2 * 2 * 5 * 3 * 5
    assert relu.bytes == 4 * 2 * 50 and relu.flops == 0
    assert summed(rows) == {"launches": 2, "bytes": 840, "flops": 300}
    assert list(operators(rows)) == ["bmm", "relu_"]


def test_what_only_writes_is_not_read_and_expanded_dims_are_there_once() -> None:
    def call() -> None:
        x = torch.zeros(8, 4, device="cuda")
        x.copy_(torch.empty(1, 4, device="cuda").expand(8, 4))
        torch.add(x, 1.0, out=torch.empty_like(x))

    zeros, copy, add = count(call).launches
    assert zeros.bytes == 128 and copy.bytes == 128 + 16 and add.bytes == 2 * 128


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.tensor([1.0, 2.0]).to("cuda"),
        lambda: torch.empty(3, device="cuda").cpu(),
        lambda: torch.empty(3, device="cuda").sum().item(),
        lambda: bool((torch.empty(3, device="cuda") > 0).any()),
    ],
)
def test_waits_are_found(call) -> None:
    with suppress(DataDependentOutputException), cuda_fakes(), Counter() as counter:
        call()
    assert counter.waits


def test_what_is_kept_is_what_is_still_in_use() -> None:
    with cuda_fakes(), Counter() as counter:
        x = torch.empty(100, device="cuda")
        y = x * 2
        x[:10]
        assert counter.kept_bytes() == 800
        del x
        assert counter.kept_bytes() == 400 and y.shape == (100,)


def test_a_formula_replaces_what_is_counted() -> None:
    register_formula("aten::sin", lambda x, out: {"flops": x.numel(), "rate": "triton"})
    try:
        (row,) = count(lambda: torch.empty(6, device="cuda").sin()).launches
    finally:
        del _FORMULAS["aten::sin"]
    assert (row.flops, row.rate, row.bytes) == (6, "triton", 48)


def test_time_is_the_largest_of_three() -> None:
    gpu = GPUS["A100"]
    assert gpu.seconds_of(Launch("", "x", "bfloat16", 10, 10)) == gpu.gap
    assert gpu.seconds_of(Launch("", "x", "bfloat16", 10**9, 10)) == 10**9 / gpu.bandwidth
    assert gpu.seconds_of(Launch("", "x", "float32", 10, 10**12)) == 1e12 / gpu.rates["float32"]


def test_shared_parameters_stay_shared() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model.append(torch.nn.Linear(2, 2))
    model[2].weight = model[0].weight
    with cuda_fakes():
        faked(model)
    assert {x.device.type for x in (*model.parameters(), *model.buffers())} == {"cuda"}
    assert model[2].weight is model[0].weight and len(list(model.parameters())) == 5


def test_quick_run(tmp_path) -> None:
    try:
        compiled()
    except DriverError as error:
        pytest.skip(str(error))
    file = tmp_path / "roofline.json"
    tiny = "performer_rpe2d_tiny_patch16_224:depth=1"
    command = [sys.executable, "tools/bench/roofline.py", "--layer-cases", "2+1:2,3:2"]
    command += ["--layers", "timm", "offset", "--models", "vit_tiny_patch16_224:depth=1", tiny]
    command += ["--img-size", "32", "--batch", "2", "--operators", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_scaled_dot_product_flash_attention_backward" in done.stdout
    found = json.loads(file.read_text())
    assert [row["tokens"] for row in found["layers"]] == [5, 5, 9, 9]
    for row in (*found["layers"], *found["models"]):
        assert row["phases"]["backward"]["launches"] > 0 and row["kept"] > 0
        assert row["A100_ms"] > row["H100_ms"] > 0 and row["waits"] == 0
        assert sum(each["bytes"] for each in row["operators"].values()) == row["bytes"]


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (lambda: 3, 3, ""),
        (lambda: sys.exit(2), 2, ""),
        (lambda: sys.exit(), 0, ""),
        (lambda: sys.exit("no file"), 1, "no file"),
        (lambda: {}["key"], 1, "KeyError: 'key'"),
    ],
)
def test_a_program_ends_before_the_interpreter_does(end, code, said, monkeypatch, capsys) -> None:
    """However it ends: a thread of autograd may not meet an interpreter that is torn down."""

    class Gone(BaseException):
        pass

    def gone(code: int) -> None:
        raise Gone(code)

    monkeypatch.setattr(os, "_exit", gone)
    with pytest.raises(Gone) as last:
        leave_after(end)
    assert last.value.args == (code,) and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--batch", "1,2,3"], "3 batches for 2 sizes"),
        (["--layer-cases", "14x14"], "14+1:64"),
        (["--gpus", "B300"], "A100"),
    ],
)
def test_wrong_options_end_in_one_line(options, named, capsys) -> None:
    from tools.bench import roofline

    with pytest.raises(SystemExit) as stop:
        roofline.parse_args(options)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and named in error and error.count("\n") == 1
