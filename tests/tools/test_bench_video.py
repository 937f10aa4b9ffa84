"""The benchmark of videos, in small: it measures what it says, and writes it down."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def test_quick_run(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, "bench_video", raising=False)
    import bench_video  # pyright: ignore

    path = tmp_path / "video.json"
    bench_video.main(["--quick", "--json", str(path)])
    shown = capsys.readouterr().out
    found = json.loads(path.read_text())
    assert set(found["whole"]["4"]) == set(bench_video.MODELS)
    for name in bench_video.STREAMS:
        row = found["streams"]["4"][name]
        assert len(row["steps"]) == 2 and row["difference"] < 1e-4 and f"stream {name}" in shown
    assert found["clips_per_second"]["training"] > 0 and found["versions"]["torch"]
    with pytest.raises(SystemExit) as stop:
        bench_video.main(["--frames", "0"])
    assert stop.value.code == 2 and "--frames" in capsys.readouterr().err
