"""The maker of shards as a program: what it prints, and one line for each wrong input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from tests.data.samples import encoded, sample, write_shard
from tests.data.video_samples import clip_sample, video

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"


@pytest.fixture(scope="module")
def tool():
    return import_module("vit_rpe.cli.shards")


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
    out, err = capsys.readouterr()
    assert f"bad: {path} k0001: " in out and f"bad: {path} k0002: wrong label: 12" in out
    assert "2 of 3 samples are bad" in err and stop.value.code == 2
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
        (["folder", "{tmp}/starter", "{tmp}/o"], "has no folders, one for each class"),
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
        (["verify", "nosuch://x/y.tar"], "is no address that shards are read from"),
        (["folder", "a\0b", "{tmp}/o"], "no folder 'a\\x00b'"),
        (["digits", "{tmp}/file/o"], "Not a directory"),
        (["csv", "{tmp}/bare.csv", "{tmp}/o"], "bare.csv has no rows"),
        (["folder", "{tmp}/empty", "{tmp}/o"], "cat' has no images"),
        (["verify", "{tmp}/starter"], "starter/_info.json is not in timm's layout"),
    ],
)
def test_wrong_input_gives_one_line(tool, tmp_path, capsys, arguments, message):
    (tmp_path / "file").touch()
    (tmp_path / "bare.csv").write_text("path,label\n")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    (tmp_path / "starter").mkdir()
    (tmp_path / "starter" / "_info.json").write_text("{}")
    with pytest.raises(SystemExit) as stop:
        given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
        tool.main([*given, "--quiet"])
    err = capsys.readouterr().err
    assert err.startswith("vit-rpe shards: error: ") and message in err and err.count("\n") == 1
    assert stop.value.code == 2


def test_a_share_is_held_out_and_other_files_are_named(tool, tmp_path, capsys):
    for label in ("cat", "dog"):
        (tmp_path / "in" / label).mkdir(parents=True)
        for i in range(30):
            (tmp_path / "in" / label / f"{i}.png").write_bytes(encoded(i % 3))
    (tmp_path / "in" / "dog" / "photo.avif").write_text("x")
    rows = [f"{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(30)]
    (tmp_path / "in" / "list.csv").write_text("\n".join(["path,label", *rows]))
    found = []
    for kind, source in (("folder", "in"), ("csv", "in/list.csv")):
        options = ["--val-fraction", "0.2", "--quiet", "--workers", "1"]
        tool.main([kind, str(tmp_path / source), str(tmp_path / kind), *options])
        shown = capsys.readouterr().out
        found.append([line for line in shown.splitlines() if " samples in " in line])
        passed = "train: 2 files passed over: 1 x .avif, 1 x .csv (taken are jpg, "
        assert (passed in shown) == (kind == "folder") and "val: " in shown
    assert [line.split(" in ")[0] for line in found[0]] == [
        line.split(" in ")[0] for line in found[1]
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "kind"),
        (["films", "x"], "invalid choice: 'films'"),
        (["digits", "x", "--size", "0"], "--size"),
        (["digits", "x", "--max-bad", "2"], "--max-bad"),
        (["digits", "x", "--workers", "5000"], "at most 512 processes, got 5000"),
        (["folder", "a", "x", "--val-fraction", "1"], "--val-fraction"),
        (["video", "a", "x", "--clip-frames", "0"], "--clip-frames"),
        (["digits"], "OUTPUT"),
    ],
)
def test_wrong_options_give_one_line(tool, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        tool.main(arguments)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("\n") == 1
