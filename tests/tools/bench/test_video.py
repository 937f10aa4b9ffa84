"""The benchmark of videos, in small: it measures what it says, and writes it down."""

from __future__ import annotations

import json
from importlib import import_module

import pytest


def test_quick_run(tmp_path, capsys):
    path = tmp_path / "video.json"
    bench = import_module("tools.bench.video")
    assert bench.main(["--quick", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        bench.main(["--frames", "0"])
    assert stop.value.code == 2 and "--frames" in capsys.readouterr().err
    found = json.loads(path.read_text())
    assert set(found["whole"]["4"]) == set(bench.MODELS)
    for name in bench.STREAMS:
        row = found["streams"]["4"][name]
        assert len(row["steps"]) == 2 and row["difference"] < 1e-4 and f"stream {name}" in shown
    assert found["clips_per_second"]["training"] > 0 and found["versions"]["torch"]
