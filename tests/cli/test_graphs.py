"""The command `vit-rpe graphs`, on small graphs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")

from vit_rpe.cli import graphs  # noqa: E402


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_RPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(folder, table):
    return [json.loads(x) for x in (folder / f"graphs_{table}.jsonl").read_text().splitlines()]


def test_a_quick_table_runs_reports_and_draws(elsewhere, capsys):
    page = elsewhere / "page.md"
    page.write_text("<!-- graphs: motifs -->\n<!-- end of graphs: motifs -->\n")
    command = ["motifs", "--quick", "--into", "page.md", "--figures", "figures"]
    assert graphs.main(command) == 0
    out = capsys.readouterr().out
    found = lines(elsewhere / "output" / "graphs", "motifs")
    models = {each["levels"].get("model") for each in found}
    assert {"GKAT", "GAT", "GCN", "ChebNet", "GIN", "GKAT additive"} <= models
    assert all(0 <= each["result"]["test"] <= 1 for each in found)
    assert f"{len(found)} of {len(found)} cells" in out and "| GKAT | 1,316 |" in out
    assert "| GKAT | 1,316 |" in page.read_text()
    assert (elsewhere / "figures" / "graphs_motifs.png").read_bytes().startswith(b"\x89PNG")
    assert graphs.main(command) == 0  # everything is there
    assert len(lines(elsewhere / "output" / "graphs", "motifs")) == len(found)


def test_only_some_cells(elsewhere, capsys):
    options = ["--quick", "--only", "model=GCN,GIN", "depth=2", "--output", "here"]
    assert graphs.main(["cycles", *options]) == 0
    found = {each["levels"]["model"] for each in lines(elsewhere / "here", "cycles")}
    assert found == {"GCN", "GIN"}
    capsys.readouterr()
    assert graphs.main(["cycles", *options, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("cycles part=accuracy") == 2
    assert graphs.main(["cycles", "--quick", "--report", "--output", "here"]) == 0
    out = capsys.readouterr().out
    assert "| GIN |" in out and "[250]" in out


def test_cells_whose_settings_are_not_chosen_yet(elsewhere, capsys):
    assert graphs.main(["citation", "--quick", "--only", "part=accuracy", "--output", "here"]) == 0
    assert "settings follow from cells with part=choice" in capsys.readouterr().out


def test_wrong_input_is_one_line(elsewhere, capsys, monkeypatch):
    monkeypatch.setenv("VIT_RPE_DATA", str(elsewhere))
    for argv, message in [
        (["citation", "--quick"], "cora is not there"),
        (["tu", "--quick"], "ENZYMES is not there"),
        (["motifs", "--only", "model"], "wanted LEVEL=VALUE"),
        (["motifs", "--only", "modle=GAT"], "no level 'modle'; nearest is 'model'"),
        (["motifs", "--only", "set=gird"], "no cell has set=gird; nearest is 'grid'"),
        (["tu", "--only", "fold=10"], "no cell has fold=10; nearest is '1'"),
        (["cycles", "--only", "model=GKAT", "depth=3"], "no cell has all of model=GKAT depth=3"),
        (["motifs", "--nice", "20"], "wanted a number from 0 to 19"),
        (["motifs", "--quick", "--report", "--into", "none.md"], "none.md"),
        (["pictures"], "invalid choice"),
    ]:
        with pytest.raises(SystemExit) as stop:
            graphs.main(argv)
        err = capsys.readouterr().err
        assert stop.value.code == 2 and message in err and err.count("\n") == 1, argv


def test_a_signal_stops_and_the_same_command_goes_on(elsewhere):
    command = [sys.executable, "-W", "ignore", "-m", "vit_rpe", "graphs", "cycles", "--output", "r"]
    command += ["--only", "model=GIN,GCN", "depth=2", "seed=0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    cache = elsewhere / "cache" / "graphs"
    deadline = time.monotonic() + 120
    while not (cache.is_dir() and len(list(cache.iterdir())) == 3):  # the first cell trains
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 75 and "the same command goes on" in out
    assert not (elsewhere / "r" / "graphs_cycles.jsonl").exists()
