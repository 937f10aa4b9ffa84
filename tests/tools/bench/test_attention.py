"""The benchmark of attention: its contestants compute what they claim, and its report is whole."""

from __future__ import annotations

import json
from importlib import import_module
from time import perf_counter
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def bench():
    return import_module("tools.bench.attention")


@pytest.fixture
def inputs(bench):
    return bench.Inputs(bench.Case((4, 5), heads=2, m=8, d=6, batch=2), "cpu", seed=1)


@pytest.mark.parametrize("mask", ["offset", "exp"])
def test_paths_agree_with_the_dense_mask(bench, inputs, mask: str) -> None:
    names = [name for name in bench.CONTESTANTS if name.startswith(f"{mask}/")]
    assert len(names) == {"offset": 4, "exp": 5}[mask]
    dense = bench.CONTESTANTS[f"{mask}/dense"](inputs)
    out, gradients = dense.call(), bench.both(dense, inputs.gradient)
    for name in names:
        contestant = bench.CONTESTANTS[name](inputs)
        torch.testing.assert_close(contestant.call(), out, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            bench.both(contestant, inputs.gradient), gradients, atol=1e-3, rtol=1e-3
        )


def test_four_terms_are_scanned(bench, inputs) -> None:
    mask, x = inputs.rpe["exp4"](), inputs
    weights = (x.q @ x.k.mT) * mask.dense()
    expected = weights @ x.v / weights.sum(-1, keepdim=True)
    assert mask.terms == 4
    torch.testing.assert_close(
        bench.CONTESTANTS["exp4/scan"](x).call(), expected, atol=1e-4, rtol=1e-4
    )


def test_bare_transforms_are_those_of_all_columns(bench, inputs, monkeypatch) -> None:
    seen = []
    irfft = torch.fft.irfft

    def counted(x, **options):
        out = irfft(x, **options)
        seen.append(out.shape)
        return out

    monkeypatch.setattr(torch.fft, "irfft", counted)
    monkeypatch.setattr(bench, "columns_within", lambda *_: 10)
    bench.CONTESTANTS["fft"](inputs).call()
    assert all(shape[0] == 4 and shape[2] == 4 for shape in seen)
    assert sum(shape[1] for shape in seen) == 8 * 7  # m features times d values and the normaliser


def test_linear_is_dense_with_a_mask_of_ones(bench, inputs) -> None:
    with torch.no_grad():
        inputs.rpe["offset"].table.zero_()
    dense, linear = (bench.CONTESTANTS[name](inputs).call() for name in ("offset/dense", "linear"))
    torch.testing.assert_close(linear, dense, atol=1e-5, rtol=1e-5)


def test_bias_is_indexed_by_query_minus_key(bench, inputs) -> None:
    softmax, biased = (bench.CONTESTANTS[name](inputs) for name in ("sdpa", "sdpa+bias"))
    torch.testing.assert_close(biased.call(), softmax.call())  # the table starts at zero
    rpe = inputs.rpe["offset"]
    index = bench.offset_index((4, 5), torch.device("cpu"))
    query, key = 1 * 5 + 4, 3 * 5 + 2  # offset (-2, 2), in a table of 7 x 9 that begins at (-3, -4)
    assert index[query, key] == 1 * 9 + 6
    torch.testing.assert_close(rpe.table.flatten(1)[:, index].exp(), rpe().dense())
    assert bench.both(biased, inputs.gradient)[-1].abs().min() > 0  # every offset learns


@pytest.fixture(scope="module")
def report(bench, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    files = ["--json", str(folder / "b.json"), "--plot", str(folder / "b.png")]
    bench.main(["--cases", "4x5:2:8:8", "--seconds", "0.1", *files])
    assert (folder / "b.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "b.json").read_text())


def test_report_has_every_contestant(bench, report) -> None:
    (case,) = report["cases"]
    rows = case["contestants"]
    assert set(rows) == set(bench.CONTESTANTS) and case["rounds"] >= 1
    for kind in ("forward", "both"):
        base = rows["sdpa"][f"{kind}_ms"]
        for name, row in rows.items():
            if name == "fft" and kind == "both":  # has no backward pass
                assert row["both_ms"] is None
                continue
            assert row[f"{kind}_ms"] > 0
            assert row[f"{kind}_ratio"] == pytest.approx(row[f"{kind}_ms"] / base)
    assert all((row["path"] is None) == ("auto" not in name) for name, row in rows.items())
    assert {"date", "threads", "versions", "settings"} <= set(report)


def test_regret_is_the_path_of_auto_over_the_best_path(report) -> None:
    rows = report["cases"][0]["contestants"]
    for kind in ("forward", "both"):
        regret = report["summary"]["regret"][kind]
        times = {p: rows[f"exp/{p}"][f"{kind}_ms"] for p in ("explicit", "product", "scan")}
        taken = rows["exp/auto"]["path"]
        times[taken] = (times[taken] + rows["exp/auto"][f"{kind}_ms"]) / 2
        expected = times[taken] / min(times.values())
        assert regret["cases"]["4x5:2:8:8 exp"] == pytest.approx(expected)
        first, second = regret["cases"].values()
        assert regret["geometric_mean"] == pytest.approx((first * second) ** 0.5)
        assert regret["worst"] == max(first, second)


def test_growth_compares_equal_settings(bench) -> None:
    def result(side: int, heads: int, ms: float) -> dict[str, Any]:
        row = {"forward_ms": ms, "both_ms": 3 * ms, "peak_mb": 1.0}
        shape = {"tokens": side * side, "heads": heads, "m": 32, "d": 32, "batch": 1}
        return {"case": f"{side}:{heads}", **shape, "contestants": {"offset/product": row}}

    results = [result(28, 1, 0.5), result(56, 1, 2.0), result(112, 1, 9.0), result(112, 2, 20.0)]
    (entry,) = bench.summarise(results)["growth"]
    assert (entry["from"], entry["to"]) == ("56:1", "112:1")
    assert entry["forward"] == entry["both"] == 4.5


def test_what_costs_too_much_is_skipped(bench, capsys) -> None:
    bench.main(["--cases", "6x6:1:4:4", "--only", "offset,linear", "--max-gb", "1e-5"])
    out = capsys.readouterr().out
    assert "needs 0.0 GB" in out and "offset/explicit" in out


def test_a_long_call_is_interrupted(bench) -> None:
    def forever() -> None:
        while True:
            torch.zeros(1)

    start = perf_counter()
    assert not bench.try_once(forever, 0.05, "cpu")
    assert perf_counter() - start < 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cases", "14x14:12:64"], "grid:heads:m:d"),
        (["--cases", "0x14:1:8:8"], "grid:heads:m:d"),
        (["--only", "flash"], "no contestant 'flash'"),
        (["--limit", "-1"], "--limit"),
        (["--threads", "0"], "--threads"),
        (["--json", "no/such/folder/b.json"], "cannot write"),
        (["--fast"], "--fast"),
    ],
)
def test_bad_options_give_one_line(bench, capsys, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(options)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("\n") == 1
