"""Bytes of shards: local, remote, through a cache, by commands."""

from __future__ import annotations

import http.server
import json
import os
import threading
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.data.samples import INFO, labels_of, make_set, sample, write_shard
from vit_rpe.data import (
    ImageTransform,
    Loader,
    Plan,
    SampleReader,
    ShardError,
    open_shards,
)
from vit_rpe.data.making import ImagePreparation, digits, make_shards
from vit_rpe.data.shards import storage


@pytest.mark.parametrize(
    "address",
    [
        "reference://?fo=file:///x.json",
        "simplecache::http://127.0.0.1/x",
        "local://x",
        "shell://x",
        "zip://x::file:///tmp/a.zip",
        "github://a:b@main/",
    ],
)
def test_addresses_are_of_known_kinds(address):
    for each in (address, [f"{address}/a.tar"]):
        with pytest.raises(ShardError, match="is no address that shards are read from"):
            open_shards(each)


@pytest.mark.parametrize("name", ["_info.json", "a-000.tar", "_index-train.npy"])
@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
def test_what_is_not_a_file_is_refused(tmp_path, name, kind):
    if name != "a-000.tar":
        write_shard(tmp_path / "a-000.tar", map(sample, range(5)))
    if name != "_info.json":
        (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": INFO}}))
    if kind == "fifo":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero" if kind == "zero" else tmp_path)
    with pytest.raises(ShardError, match=f"{name}.*not a regular file|{name} is not an index"):
        open_shards(str(tmp_path), "train")


def test_a_nul_in_an_address():
    for address in ("data/\0digits", ["a\0.tar"], "data/\ud800"):
        with pytest.raises(ShardError, match="is no address: it has a NUL"):
            open_shards(address, "val")


@pytest.fixture
def afar(tmp_path):
    """The digits behind an fsspec address."""
    make_shards(digits()["val"], tmp_path / "digits", "val", ImagePreparation(100))
    fs = fsspec.filesystem("memory")
    fs.put(str(tmp_path / "digits") + "/", "/digits/", recursive=True)
    yield "memory://digits"
    fs.rm("/digits", recursive=True)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_shards_behind_an_address(afar, tmp_path, index, cached, workers):
    if not index:
        fs = fsspec.filesystem("memory")
        fs.rm(["/digits/_index-val.npy", "/digits/_info.json"])
    cache = str(tmp_path / "shards") if cached else None
    plan_options = {"batch_size": 64, "seed": 3, "drop_last": False}
    runs = []
    for address in (afar, str(tmp_path / "digits")):
        shards = open_shards(address, "val", cache=cache)
        plan = Plan(shards.lengths, **plan_options)
        loader = Loader(shards, plan, ImageTransform(8), workers=workers)
        runs.append([(b.images.sum().item(), b.labels.tolist(), b.keys) for b in loader.epoch(0)])
    assert runs[0] == runs[1] and len(runs[0]) == 6
    if cached:
        assert len(list((tmp_path / "shards").glob("*.tar"))) == 4


def test_what_cannot_be_read_from_afar_is_named(afar, monkeypatch):
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    shards = open_shards(afar, "val")
    fsspec.filesystem("memory").rm("/digits/val-00002.tar")
    with pytest.raises(ShardError, match="FileNotFoundError"):
        SampleReader(shards).read(np.array([250]))


def test_a_network_that_fails_for_a_while_is_no_bad_sample(afar, monkeypatch):
    shards = open_shards(afar, "val")
    fs = type(fsspec.filesystem("memory"))
    waits, failures, cat = [], [OSError("lost"), OSError("lost")], fs.cat_ranges
    monkeypatch.setattr(storage.time, "sleep", waits.append)

    def sometimes(*args, **options):
        if failures:
            raise failures.pop()
        return cat(*args, **options)

    monkeypatch.setattr(fs, "cat_ranges", sometimes)
    assert labels_of(shards) and len(waits) == 2 and waits[1] > waits[0]


def test_a_server_that_sends_whole_files_only(afar, monkeypatch):
    shards = open_shards(afar, "val")
    fs = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(fs, "cat_ranges", lambda self, p, s, e, **_: [b"x" * 9999] * len(p))
    with pytest.raises(ShardError, match="sends whole files only; set a cache folder"):
        labels_of(shards)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A file server that knows ranges of bytes, as those of object stores do."""

    protocol_version = "HTTP/1.1"  # connections are kept
    wbufsize = 1 << 16  # head and body in one packet

    def do_GET(self):
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        path = Path(self.translate_path(self.path))
        if not wanted or not path.is_file():
            return super().do_GET()
        first, last = wanted.split("-")
        data = path.read_bytes()[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256  # all samples of a batch are asked for at once
    daemon_threads = True


def test_shards_over_http(tmp_path):
    pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http: pip install aiohttp")
    make_shards(digits()["val"], tmp_path / "digits", "val", ImagePreparation(100))
    handler = partial(Ranges, directory=str(tmp_path / "digits"))
    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shards = open_shards(f"http://127.0.0.1:{server.server_port}", "val")
        assert shards.num_samples == 355
        assert labels_of(shards) == labels_of(open_shards(str(tmp_path / "digits"), "val"))
        loader = Loader(shards, Plan(shards.lengths, 50), ImageTransform(8), workers=2)
        assert sum(int(batch.valid.sum()) for batch in loader.epoch(0)) == 350
        server.shutdown()


def test_commands_run_only_if_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    make_set(tmp_path / "s", (3,))
    trap = tmp_path / "trap"
    url = f"pipe:touch {trap}; cat {tmp_path / 's' / 'x-train-000.tar'}"
    for address in (url, [url]):
        with pytest.raises(ShardError, match="is a command, and commands run only if allowed"):
            open_shards(address)
    assert not trap.exists()
    shards = open_shards([url], allow_pipe=True)
    assert labels_of(shards) == [0, 1, 2] and trap.exists()
    with pytest.raises(ShardError, match="cannot be read"):
        open_shards(["pipe:exit 3"], allow_pipe=True)


def test_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "OPEN_FILES", 3)
    shards = make_set(tmp_path, (1,) * 9)
    reader = SampleReader(shards)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert [s.label for s in reader.read(np.arange(9))] == list(range(9))  # pyright: ignore
    assert len(os.listdir("/proc/self/fd")) - before <= 3
