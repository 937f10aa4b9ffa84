"""The check of GPU kernels: it passes, and finds wrong numbers, other bits, spills, broken runs."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from vit_rpe.attention import forget_plans
from vit_rpe.checks import SMALL, Compilation, check_gpu, numbers, page
from vit_rpe.checks import gpu as gpu_checks
from vit_rpe.checks.cases import FULL, Case
from vit_rpe.checks.numbers import compare, small_numbers
from vit_rpe.checks.speed import in_turns, layer_speeds, model_speeds

CPU = torch.device("cpu")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
GOOD = Compilation("linear", "sm_80", "bfloat16", 64, "64 x 64", 168, 1000, 2000, 0, 8, 0)


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setenv("VIT_RPE_TRITON", "1")
    forget_plans()
    yield
    forget_plans()


@needs_triton
@pytest.mark.usefixtures("interpreted")
def test_a_report_of_cases_and_speeds(tmp_path):
    case = Case((3, 4), prefix=1, m=8, d=8, heads=1)
    said = []
    speeds = partial(layer_speeds, CPU, ((2, 1),), 0.0, ("sdpa", "sdpa + bias"))
    report = check_gpu(CPU, said.append, [case], repeats=2, speeds=speeds)
    assert report.passed and report.problems == []
    assert [x.dtype for x in report.numbers] == ["bfloat16", "float16", "float32"]
    assert {x.form for x in report.numbers} == {"gpu"}
    assert [(x.contestant, x.failure) for x in report.speeds] == [("sdpa", ""), ("sdpa + bias", "")]
    assert len(said) == 5 and all("sdpa" in x or x.startswith("ok") for x in said)
    text = page(report)
    assert "PASS" in text and case.name in text and "sdpa + bias" in text
    assert "<script" not in text and "http" not in text  # it needs nothing else
    assert json.loads(json.dumps(report.as_dict()))["passed"]


@needs_triton
@pytest.mark.usefixtures("interpreted")
def test_wrong_numbers_are_found(monkeypatch):
    """A thousandth too much in float32; and a run that differs from the next."""
    case = Case((3, 4), m=8, d=8, heads=1)
    right = Case.attend
    monkeypatch.setattr(Case, "attend", lambda *x: right(*x) * 1.001)
    problem = compare(case, torch.float32, CPU, 1).problem()
    assert problem is not None and problem.startswith("result is wrong by 1.0e-03")
    calls = []

    def drifting(*x):
        calls.append(x)
        return right(*x) * (1 + 1e-7 * len(calls))

    monkeypatch.setattr(Case, "attend", drifting)
    assert compare(case, torch.float32, CPU, 2).problem() == "2 repetitions differ in their bits"


@needs_triton
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", [SMALL[1], SMALL[2], SMALL[5]], ids=lambda case: case.name)
def test_products_in_tf32_pass(case, monkeypatch):
    """As a GPU multiplies: operands of float32 lose their last 13 bits."""
    from triton.runtime.interpreter import InterpreterBuilder

    exact = InterpreterBuilder.create_dot

    def cut(builder, a, b, *rest):
        for x in (a, b):
            if x.data.dtype == np.float32:
                x.data = (x.data.view(np.int32) & -(1 << 13)).view(np.float32)
        return exact(builder, a, b, *rest)

    monkeypatch.setattr(numbers, "_multiplies_exactly", lambda device: False)
    plain = compare(case, torch.float32, CPU, 1)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", cut)
    found = compare(case, torch.float32, CPU, 1)
    assert found.problem() is None and found.errors["result"] > 10 * plain.errors["result"]
    attend = Case.attend
    monkeypatch.setattr(Case, "attend", lambda *x: 1.005 * attend(*x))
    # small sums of signed weights lose more than that
    assert case.signed or compare(case, torch.float32, CPU, 1).problem() is not None


def test_another_form_is_no_check_of_the_kernels():
    numbers = compare(Case((3, 4), m=8, d=8), torch.float32, CPU, 1)
    assert numbers.problem() is not None and "not by the kernels" in numbers.problem()


def test_a_broken_kernel_fails_its_case_and_not_the_others(monkeypatch):
    def broken(case, *_):
        raise RuntimeError("out of\nresources")

    monkeypatch.setattr(gpu_checks, "compare", broken)
    report = check_gpu(CPU, print, SMALL[:2], speeds=lambda: iter(()))
    assert not report.passed and len(report.errors) == 6
    assert "RuntimeError: out of resources" in report.problems[0]
    assert "FAIL" in page(report) and "out of resources" in page(report)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stack": 8}, "8 bytes do not fit"),
        ({"shared": 3000}, "3000 bytes of shared memory"),
        ({"atomics": 1}, "atomic"),
        ({"matrix_instructions": 0}, "no matrix"),
    ],
)
def test_problems_of_compilations(changes, said):
    assert GOOD.problem() is None
    assert said in (replace(GOOD, **changes).problem() or "")


def test_cases_cover_kernels_and_options():
    for cases in (SMALL, FULL):
        assert {x.features for x in cases} == {"relu", "elu", "square", "softmax", "none"}
        for option in ("signed", "shared", "hidden", "floor", "prefix"):
            assert any(getattr(x, option) for x in cases), option
        assert any(x.border == "learned" for x in cases)
        assert any(x.weights == "exponential" for x in cases)
        assert len({x.name for x in cases}) == len(cases)
    assert {x.m for x in FULL} >= {16, 32, 48, 64, 128}


def test_what_cannot_run_is_named_and_others_go_on():
    def broken():
        raise RuntimeError("no such kernel")

    found = list(in_turns("case", {"a": lambda: lambda: None, "b": broken}, CPU, 0.0))
    assert [x.contestant for x in found] == ["a", "b"]
    assert found[0].ratio == 1.0 and found[0].rounds >= 3
    assert found[1].milliseconds is None and "no such kernel" in found[1].failure


@pytest.mark.slow
def test_models_and_the_form_without_kernels_take_turns():
    options = {"depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 5}
    found = list(model_speeds(CPU, ((32, 1),), 0.0, **options))
    assert len(found) == 3 and all(x.milliseconds for x in found)
    names = ("sdpa", "vit_rpe softmax", "vit_rpe linear", "vit_rpe linear, without kernels")
    found = list(layer_speeds(CPU, ((2, 1),), 0.0, names))
    assert [x.contestant for x in found] == list(names) and all(x.milliseconds for x in found)


@needs_triton
@pytest.mark.slow
def test_the_command_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = import_module("vit_rpe.cli.check")
    assert check.main(["--device", "cuda", "--quick", "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "There is no GPU here" in said and "PASS" in said and "FAIL" not in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(report["compilations"]) == 9
    assert {x["form"] for x in report["numbers"]} == {"gpu"}
    assert "PASS" in (tmp_path / "out" / "report.html").read_text()


def test_the_command_refuses_what_does_not_fit(tmp_path, capsys):
    check = import_module("vit_rpe.cli.check")
    file = tmp_path / "file"
    file.touch()
    for arguments, said in (
        (["--quick"], "want --device cuda"),
        (["--device", "cuda", "--grid", "3", "4"], "--grid"),
        (["--device", "cuda", "--output", str(file)], str(file)),
    ):
        with pytest.raises(SystemExit) as stop:
            check.main(arguments)
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@needs_triton
@pytest.mark.usefixtures("interpreted")
def test_small_cases_take_the_kernels():
    first = next(iter(small_numbers()))
    assert first.form == "gpu" and first.problem() is None
