"""The maker of shards as a program: what it prints, and one line for each wrong input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.samples import encoded, sample, write_shard
from tests.data.videos import clip_sample, video
from tests.tools.loading import loaded

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"


@pytest.fixture(scope="module")
def tool():
    with loaded("make_shards") as module:
        yield module


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_RPE_CACHE", str(tmp_path / "cache"))


def test_digits_are_made_and_verified(tool, tmp_path, capsys):
    out = str(tmp_path / "out")
    tool.main(["digits", out, "--samples-per-shard", "500", "--workers", "2"])
    shown = capsys.readouterr()
    assert "train: 1442 samples in 3 shards" in shown.out
    assert "val: 355 samples in 1 shards" in shown.out and "100%" in shown.err
    tool.main(["verify", out, "--quiet"])
    shown = capsys.readouterr()
    assert "train: 1442 samples in 3 shards, 0 bad" in shown.out and not shown.err


def test_verify_names_bad_samples(tool, tmp_path, capsys):
    samples = [sample(0), {**sample(1), "png": encoded(1)[:50]}, sample(2, 12)]
    path = write_shard(tmp_path / "s" / "a-000.tar", samples)
    options = ["--quiet", "--num-classes", "10", "--workers", "1"]
    with pytest.raises(SystemExit) as stop:
        tool.main(["verify", str(tmp_path / "s"), *options])
    out = capsys.readouterr().out
    assert f"bad: {path} k0001: " in out and f"bad: {path} k0002: wrong label: 12" in out
    assert "2 of 3 samples are bad" in str(stop.value)
    tool.main(["verify", str(path), *options, "--max-bad", "0.7"])


def test_videos_are_made_and_verified(tool, tmp_path, capsys):
    place = tmp_path / "videos" / "run"
    place.mkdir(parents=True)
    for i in range(3):
        (place / f"{i}.mp4").write_bytes(video(9 + i))
    (place / "3.mp4").write_bytes(video(9)[:500])
    out = str(tmp_path / "out")
    options = ["--clip-frames", "4", "--max-bad", "0.3", "--quiet", "--workers", "2"]
    tool.main(["video", str(tmp_path / "videos"), out, *options])
    shown = capsys.readouterr().out
    assert "train: 6 samples in 1 shards" in shown and "1 of 4 left out as bad" in shown
    tool.main(["verify", out, "--quiet"])
    assert "train: 6 samples in 1 shards, 0 bad" in capsys.readouterr().out
    bad = [{**clip_sample(0), "zip": b"x"}, clip_sample(1)]
    path = write_shard(tmp_path / "s" / "a-000.tar", bad)
    tool.main(["verify", str(path), "--video", "--quiet", "--max-bad", "0.6"])
    assert f"bad: {path} k0000: not a video" in capsys.readouterr().out


def test_moving_digits(tool, tmp_path, capsys):
    tool.main(["moving-digits", str(tmp_path), "--quiet", "--samples-per-shard", "1000"])
    shown = capsys.readouterr().out
    assert "train: 2884 samples in 3 shards" in shown and "val: 710 samples in 1 shards" in shown


@pytest.mark.slow
def test_a_killed_run_goes_on(tool, tmp_path):
    """kill -9 in the middle, then the same command: the shards are those of a run in one piece."""
    folder = tmp_path / "images" / "cat"
    folder.mkdir(parents=True)
    for i in range(240):
        (folder / f"{i}.png").write_bytes(encoded(i, height=120, width=90))
    options = ["--samples-per-shard", "20", "--size", "64", "--workers", "1", "--quiet"]
    command = ["folder", str(tmp_path / "images"), str(tmp_path / "out"), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(TOOLS / "make_shards.py"), *command]
    process = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not list((tmp_path / "out").glob("train-*.tar")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert 0 < len(list((tmp_path / "out").glob("train-*.tar"))) < 12
    tool.main(command)
    tool.main([*command[:2], str(tmp_path / "whole"), *options])
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("out", "whole")
    )
    assert one == other and len(one) == 14


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["folder", "{tmp}/none", "{tmp}/o"], "no folder"),
        (["folder", "{tmp}", "{tmp}/o"], "has no folders, one for each class"),
        (["csv", "{tmp}/none.csv", "{tmp}/o"], "No such file or directory: "),
        (["idx", "{tmp}", "{tmp}/o"], "no files such as train-images-idx3-ubyte.gz"),
        (["torchvision", "Nothing", "{tmp}/o", "--root", "{tmp}"], "has no 'Nothing'"),
        (["torchvision", "CIFAR10", "{tmp}/o", "--root", "{tmp}"], "not found or corrupted"),
        (["video", "{tmp}/none", "{tmp}/o"], "no folder"),
        (["video", "{tmp}/none.csv", "{tmp}/o"], "No such file or directory: "),
        (["moving-pairs", "{tmp}", "{tmp}/o"], "no files such as train-images-idx3-ubyte.gz"),
        (["verify", "{tmp}"], "no shards (.tar) at"),
        (
            ["verify", "pipe:echo"],
            "commands run only if allowed on the command line (--allow-pipe)",
        ),
        (["verify", "nosuch://x/y.tar"], "Protocol not known: nosuch"),
    ],
)
def test_wrong_input_gives_one_line(tool, tmp_path, arguments, message):
    with pytest.raises(SystemExit) as stop:
        tool.main([argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    text = str(stop.value)
    assert stop.value.code == 2
    assert text.startswith("make_shards: error: ") and message in text and "\n" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "kind"),
        (["films", "x"], "invalid choice: 'films'"),
        (["digits", "x", "--size", "0"], "--size"),
        (["digits", "x", "--max-bad", "2"], "--max-bad"),
        (["video", "a", "x", "--clip-frames", "0"], "--clip-frames"),
        (["digits"], "output"),
    ],
)
def test_wrong_options_give_one_line(tool, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        tool.main(arguments)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("\n") == 1
