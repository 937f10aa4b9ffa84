"""What the benchmarks share: one style of options, bars with one exit code, tables, reports."""

from __future__ import annotations

import argparse
import json
from importlib import import_module

import pytest

from tools.bench.harness import (
    aligned,
    chosen,
    exit_code,
    in_turns,
    judge,
    number,
    positive_integers,
    slope,
    verdict,
    write_report,
)

BENCHES = ("attention", "data", "gkat", "graph", "models", "train", "video")


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_has_the_common_options(name, capsys):
    if name in ("gkat", "graph"):
        pytest.importorskip("torch_geometric")
    bench = import_module(f"tools.bench.{name}")
    with pytest.raises(SystemExit) as stop:
        bench.main(["--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and shown.startswith(f"usage: bench/{name} ")
    options = ["--json", "--quick", "--threads", "--device", "--seed"]
    for option in options + ["--seconds"] * (name != "data"):
        assert f" {option}" in shown, option
    with pytest.raises(SystemExit) as stop:
        bench.main(["--qui"])
    assert stop.value.code == 2 and capsys.readouterr().err.startswith(f"bench/{name}: error: ")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("attention", ["--seconds-per-case", "3"], ["--seconds", "3"]),
        ("models", ["--sizes", "tiny"], ["--size", "tiny"]),
        ("data", ["--side", "32", "--batch-size", "8"], ["--img-size", "32", "--batch", "8"]),
    ],
)
def test_older_spellings_mean_the_same(name, old, new):
    bench = import_module(f"tools.bench.{name}")
    parse = bench.parse if name == "data" else bench.parse_args
    assert parse(old) == parse(new) != parse([])


def test_options_do_not_change_the_models_of_a_benchmark(monkeypatch):
    bench = import_module("tools.bench.train")
    before = json.dumps(bench.MODELS)
    row = {"model": "x", "bare_ms": 1.0, "trainer_ms": 1.0, "ratio": 1.0, "turns": 1}
    monkeypatch.setattr(bench, "measure", lambda name, args: row)
    assert bench.main(["--batch", "3"]) == 0 and json.dumps(bench.MODELS) == before
    row["ratio"] = 1.06
    assert bench.main(["--quick"]) == 1
    args = bench.parse(["--quick"])
    assert args.models == ["quickstart"] and args.seconds == 1.0


def test_bars_and_their_exit_code():
    low, high = judge("speed", 2.0, at_least=2.0), judge("memory", 0.3, at_most=0.2)
    assert low == {"aim": "speed", "bar": 2.0, "measured": 2.0, "met": True}
    assert (verdict(low), verdict(high)) == ("met", "missed")
    assert exit_code([]) == exit_code([low]) == 0 and exit_code([low, high]) == 1
    assert exit_code([judge("speed", float("nan"), at_least=1.0)]) == 1


def test_calls_take_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    times = in_turns(calls, 0.0, "cpu", seed=0, fewest=4)
    assert all(len(samples) == 4 for samples in times.values())
    rounds = [order[i : i + 3] for i in range(0, 12, 3)]
    assert all(sorted(each) == list("abc") for each in rounds) and len(set(map(tuple, rounds))) > 1


def test_tables_and_slopes():
    assert [number(x) for x in (None, 1.234, 12.34, 1234.0)] == ["-", "1.23", "12.3", "1,234"]
    assert aligned([["name", "ms"], ["a", "10"]]) == "  name  ms\n  a     10"
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)


def test_lists_of_options():
    assert chosen("b", ["a/b", "a/c", "b"]) == ["a/b", "b"]
    assert positive_integers("16,32") == [16, 32]
    with pytest.raises(argparse.ArgumentTypeError, match="above 0, got '0'"):
        positive_integers("16,0")


def test_a_report_is_written_where_one_is_asked_for(tmp_path):
    write_report(None, {"a": 1})
    write_report(tmp_path / "r.json", {"a": 1})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": 1}
