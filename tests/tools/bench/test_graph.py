"""The benchmark of graph masks: rivals compute the same thing, and its report is whole."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def bench():
    return import_module("tools.bench.graph")


@pytest.fixture(scope="module")
def report(bench, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    file, picture = folder / "b.json", folder / "b.png"
    sizes = ["--nodes", "16,32,64", "--seconds", "0.01"]
    bench.main([*sizes, "--json", str(file), "--plot", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    return json.loads(file.read_text())


def test_report_has_every_family_and_size(bench, report) -> None:
    assert {case["family"] for case in report["cases"]} == set(bench.FAMILIES)
    assert len(report["cases"]) == 3 * len(bench.FAMILIES)
    for case in report["cases"]:
        rows = case["contestants"]
        base = rows[case["mask"]]["ms"]
        for row in rows.values():
            assert row["ms"] > 0 and row["ratio"] == pytest.approx(row["ms"] / base)
    assert all(f"{case['family']}: {case['mask']}" in report["growth"] for case in report["cases"])
    assert {"date", "threads", "versions", "settings"} <= set(report)
    assert report["bars"] == []  # so small, only overheads would be judged


def test_a_run_can_be_cut_up(bench, tmp_path, capsys) -> None:
    file = tmp_path / "b.json"
    sizes = ["--nodes", "16,32,64", "--seconds", "0.01", "--json", str(file), "--resume"]
    bench.main([*sizes, "--only", "hypercube"])
    first = json.loads(file.read_text())["cases"]
    bench.main([*sizes, "--only", "walks"])
    report = json.loads(file.read_text())
    assert [case for case in report["cases"] if case["family"] == "hypercube"] == first
    assert len(report["cases"]) == 6 and len(report["growth"]) == 4
    capsys.readouterr()
    file.write_text('{"other": 1}')
    with pytest.raises(SystemExit, match="is no report of this tool"):
        bench.main([*sizes, "--only", "walks"])


@pytest.mark.parametrize(
    ("family", "mine", "rival"),
    [
        ("tree_exponential", "product", "brute force"),
        ("tree_function", "product and construction", "brute force"),
        ("tree_function/shallow", "product", "dense product alone"),
        ("diffusion/laplacian", "Chebyshev, tol 2^-53", "expm_multiply"),
        ("diffusion/normalized", "Chebyshev, tol 2^-53", "expm_multiply"),
        ("diffusion/adjacency", "Chebyshev, tol 2^-53", "expm_multiply"),
        ("hypercube", "product", "brute force"),
        ("walk_kernel", "product", "brute force"),
    ],
)
def test_rivals_compute_the_same(bench, family, mine, rival) -> None:
    torch.manual_seed(0)
    case = bench.FAMILIES[family](64)
    ours, theirs = (torch.as_tensor(case.calls[name]()) for name in (mine, rival))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_brute_force_on_trees_knows_the_distances() -> None:
    Tree = import_module("tools.bench._graph_cases").Tree
    tree = Tree(torch.tensor([0, 0, 1, 1, 3]))
    weight = torch.tensor([1.0, 2, 3, 4, 5])
    expected = torch.tensor([0.0, 1, 2, 4, 5, 9])
    torch.testing.assert_close(tree.distances(weight)[0], expected)
    assert tree.distances(weight)[5, 4] == 5 + 3 + 4


def test_slopes_and_bars(bench) -> None:
    assert bench.slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
    bar = bench.BARS[0]
    row = {"ms": 1.0, "ratio": bar.ratio - 1}
    result = {"family": bar.family, "nodes": bar.nodes, "mask": "product"}
    result["contestants"] = {bar.rival: row}
    (judged,) = bench.bars([result], {})
    assert not judged["met"] and "missed" in bench.summary({}, [judged])
    row["ratio"] = bar.ratio
    (judged, grown) = bench.bars([result], {f"{bar.family}: product": 1.2})
    assert judged["met"] and not grown["met"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "ten"], "numbers of nodes"),
        (["--nodes", "3"], "from 16"),
        (["--only", "gcn"], "no contestant 'gcn'"),
        (["--json", "no/such/folder/b.json"], "cannot write"),
    ],
)
def test_bad_options_give_one_line(bench, capsys, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(options)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(("share", "code"), [(1.0, 0), (0.9, 1)])
def test_a_missed_bar_is_the_exit_code(bench, monkeypatch, capsys, share, code) -> None:
    bar = next(bar for bar in bench.BARS if bar.family == "walks")
    rows = {"random_walks": {"ms": 1.0, "ratio": 1.0}}
    rows[bar.rival] = {"ms": bar.ratio, "ratio": share * bar.ratio}
    result = {"family": "walks", "asked": bar.nodes, "nodes": bar.nodes, "edges": 9, "columns": 0}
    result |= {"note": "", "mask": "random_walks", "rounds": 1, "contestants": rows}
    monkeypatch.setattr(bench, "measure", lambda family, nodes, args: result)
    assert bench.main(["--only", "walks", "--nodes", str(bar.nodes)]) == code
    assert ("missed" if code else "met") in capsys.readouterr().out
