"""The benchmark of data: its contestants read the same images, and its report is whole."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import islice

import pytest
import torch

from vit_rpe.data.making import ImagePreparation, make_shards


@pytest.fixture(scope="module")
def bench():
    return import_module("tools.bench.data")


@pytest.mark.slow
def test_contestants_give_the_same_kind_of_batches(bench, tmp_path):
    args = bench.parse(["--quick", "--batch-size", "16", "--workers", "1"])
    make_shards(
        bench.Pictures(64, 32, 0), tmp_path, "train", ImagePreparation(samples_per_shard=16)
    )
    moments = {}
    for name, contestant in bench.CONTESTANTS.items():
        batches = contestant(str(tmp_path), args)
        images = torch.cat(list(islice(batches, 4)))
        batches.close()
        assert images.shape == (64, 3, 32, 32) and images.dtype == torch.float32
        moments[name] = images.mean().item(), images.std().item()
    for moment in moments.values():  # the same transform of the same images, with other draws
        assert moment == pytest.approx(moments["vit_rpe"], abs=0.25)


@pytest.mark.slow
def test_report_is_whole(bench, tmp_path):
    path = tmp_path / "data.json"
    bench.main(["--quick", "--workers", "1", "--json", str(path)])
    report = json.loads(path.read_text())
    speed = report["speed"]
    assert set(speed["images_per_second"]) == set(bench.CONTESTANTS)
    ours = speed["images_per_second"]["vit_rpe"]
    for name, rate in speed["images_per_second"].items():
        assert rate > 0 and speed["vit_rpe_over"][name] == pytest.approx(ours / rate)
    assert report["memory"]["samples"] == 20_000 and len(report["memory"]["mb"]) == 5
    assert report["memory"]["growth_mb"] < 30
    assert 1 <= report["bytes"]["ratio"] < 1.2
    assert report["startup"]["shards"] == 10_000 and report["startup"]["ready_seconds"] < 2
    assert report["startup"]["plan_seconds_per_worker_and_epoch"] < 1
    assert {"date", "versions", "settings"} <= set(report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "colour"], "no contestant 'colour'"),
        (["--workers", "0"], "--workers"),
        (["--images", "4"], "too few for 8 shards and a batch, got 4"),
        (["--json", "no/such/folder/b.json"], "cannot write"),
    ],
)
def test_bad_options_give_one_line(bench, capsys, options, message):
    with pytest.raises(SystemExit) as stop:
        bench.main(options)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("\n") == 1
