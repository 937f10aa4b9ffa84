"""The benchmark of models: its contestants are the models they claim, and its report is whole."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def bench():
    return import_module("tools.bench.models")


@pytest.fixture(scope="module")
def report(bench, tmp_path_factory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("bench") / "b.json"
    small = ["--quick", "--img-size", "32", "--depth", "1", "--seconds", "0.1"]
    bench.main([*small, "--json", str(file)])
    return json.loads(file.read_text())


def test_report_has_every_contestant(bench, report) -> None:
    (case,) = report["cases"]
    rows = case["contestants"]
    assert set(rows) == set(bench.CONTESTANTS) and case["patches"] == 4
    for kind in bench.KINDS:
        base = rows["vit"][f"{kind}_ms"]
        for row in rows.values():
            assert row[f"{kind}_ms"] > 0 and row["skipped"] is None
            assert row[f"{kind}_ratio"] == pytest.approx(row[f"{kind}_ms"] / base)
    assert {"date", "threads", "versions", "settings"} <= set(report)
    assert report["target"] is None  # a shallow model says nothing about it


def test_every_size_meets_every_image(bench) -> None:
    args = bench.parse_args(["--sizes", "tiny,base", "--img-size", "224,448", "--batch", "3"])
    assert list(bench.cases(args)) == [
        bench.Case(size, side, 3) for size in ("tiny", "base") for side in (224, 448)
    ]


def test_contestants_are_the_models_of_that_size(bench) -> None:
    case = bench.Case("tiny", img_size=32, batch=2, depth=1)
    for name, (_, options) in bench.CONTESTANTS.items():
        model = bench.build(name, case, "decay")
        assert model.embed_dim == 192 and len(model.blocks) == 1
        rpe = getattr(model.blocks[0].attn, "rpe", None)
        assert (type(rpe).__name__.lower() if rpe else None) == (
            f"{options['rpe']}rpe" if "rpe" in options else None
        )
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, 1000)


def test_a_step_trains_and_inference_does_not(bench) -> None:
    args = bench.parse_args(["--quick"])
    contestant = bench.Contestant("performer_rpe2d/offset", bench.Case("tiny", 32, 2, 2), args)
    table = contestant.model.blocks[0].attn.rpe.table
    before = table.detach().clone()
    logits = contestant.step("infer")()
    assert not contestant.model.training and not logits.requires_grad
    torch.testing.assert_close(table.detach(), before)
    first = contestant.step("train")()
    assert contestant.model.training and not torch.equal(table.detach(), before)
    assert all(parameter.grad is None for parameter in contestant.model.parameters())
    for _ in range(3):
        last = contestant.train()
    assert last < first


def test_bfloat16_and_only(bench, capsys) -> None:
    case = ["--quick", "--img-size", "32", "--depth", "1", "--seconds", "0.1"]
    bench.main([*case, "--amp", "--only", "performer,exponential"])
    out = capsys.readouterr().out
    assert "bfloat16" in out and "performer_tiny" in out and out.count("rpe=exponential") == 2
    assert "rpe=offset" not in out and " vit_tiny" not in out


def test_large_matrices_are_skipped(bench, capsys) -> None:
    case = ["--quick", "--img-size", "32", "--only", "vit_rpe2d/offset", "--max-gb", "1e-6"]
    bench.main(case)
    assert "needs about" in capsys.readouterr().out


def test_the_target_is_judged(bench) -> None:
    row = {"train_ratio": 1.3}
    case = {"size": "small", "img_size": 224, "depth": None}
    result = {**case, "contestants": {"performer_rpe2d/offset": row}}
    goal = bench.target([{**result, "size": "tiny"}, result])
    assert goal["measured"] == 1.3 and not goal["met"] and "missed" in bench.target_text(goal)
    row["train_ratio"] = 1.25
    assert bench.target([result])["met"] and bench.target([{**result, "depth": 2}]) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "huge"], "tiny, small, base"),
        (["--img-size", "225"], "multiples of 16"),
        (["--img-size", "0"], "multiples of 16"),
        (["--only", "resnet"], "no contestant 'resnet'"),
        (["--batch", "0"], "--batch"),
        (["--json", "no/such/folder/b.json"], "cannot write"),
        (["--fast"], "--fast"),
    ],
)
def test_bad_options_give_one_line(bench, capsys, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(options)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(("ratio", "code"), [(1.25, 0), (1.26, 1)])
def test_a_missed_target_is_the_exit_code(bench, monkeypatch, capsys, ratio, code) -> None:
    rows = {"performer_rpe2d/offset": {"train_ratio": ratio}}
    result = {"size": "small", "img_size": 224, "depth": None, "contestants": rows}
    monkeypatch.setattr(bench, "measure", lambda case, args: result)
    monkeypatch.setattr(bench, "case_table", lambda result: "")
    assert bench.main([]) == code
    assert ("missed" if code else "met") in capsys.readouterr().out
