"""Videos and folders of frames to shards: whole or in clips, kept or smaller, bad ones named."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import encoded, pixels
from tests.data.video_samples import number_of, video
from vit_rpe.data import (
    VIDEO_ENDINGS,
    SampleReader,
    ShardError,
    VideoDecoder,
    open_shards,
    videos_of,
)
from vit_rpe.data.making import VideoPreparation, make_shards, video_folder, video_table
from vit_rpe.data.videos.files import PyAVVideo


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two splits of two classes: files in several containers, and folders of 11 frames."""
    root = tmp_path / "videos"
    for split in ("train", "val"):
        for label, name in enumerate(("jump", "run")):
            place = root / split / name
            (place / "frames 1").mkdir(parents=True)
            for t in range(11):
                (place / "frames 1" / f"f_{t}.png").write_bytes(encoded(10 * label + t))
            for ending in ("mp4", "webm"):
                (place / f"a.{ending}").write_bytes(video(10 + label, ending))
    return root


def made(
    source, out: Path, split: str = "train", recipe: VideoPreparation | None = None, **options
):
    info = make_shards(source, out, split, recipe or VideoPreparation(2, seed=None), **options)
    shards = open_shards(str(out), split)
    samples = SampleReader(shards).read(np.arange(shards.num_samples))
    return info, shards, {sample.key: sample for sample in samples}


def test_bytes_are_kept_and_frames_are_in_order(folder, tmp_path):
    for split, source in video_folder(folder).items():
        info, shards, samples = made(source, tmp_path / "out", split)
        assert info.num_samples == 6 and info.made["medium"] == "video"
        assert shards.classes == ("jump", "run") and videos_of(shards) is None
        names = ["a", "a", "frames_1"]
        assert [key[9:] for key in samples] == names * 2
        assert [sample.label for sample in samples.values()] == [0] * 3 + [1] * 3
        first = (folder / split / "jump" / "a.mp4").read_bytes()
        assert samples["00000000_a"].data == first
        opened = VideoDecoder()(samples["00000005_frames_1"].data)
        expected = np.stack([pixels(10 + t) for t in range(11)])  # f_10 after f_9
        frames = opened.frames(range(11)).permute(0, 2, 3, 1).numpy()
        np.testing.assert_array_equal(frames, expected)


def test_others_find_the_videos_without_our_index(folder, tmp_path):
    made(video_folder(folder)["val"], tmp_path / "out", "val")
    for path in (tmp_path / "out").glob("_*"):
        path.unlink()
    shards = open_shards(str(tmp_path / "out"), "val", endings=VIDEO_ENDINGS)
    assert shards.num_samples == 6 and (shards.rows["size"] > 0).all()


def test_one_sample_for_each_clip(folder, tmp_path):
    recipe = VideoPreparation(2, clip_frames=4, seed=None)
    info, shards, samples = made(video_folder(folder)["train"], tmp_path / "out", recipe=recipe)
    assert info.num_samples == 12 and len(info.filenames) == 3
    assert [key for key in samples if "_a" in key][:2] == [
        "00000000_a-clip000",
        "00000000_a-clip001",
    ]
    assert videos_of(shards).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for number, start in enumerate((0, 4)):
        opened = VideoDecoder()(samples[f"00000003_a-clip00{number}"].data)
        assert [number_of(frame) for frame in opened] == list(range(start, start + 4))
        opened = VideoDecoder()(samples[f"00000005_frames_1-clip00{number}"].data)
        frames = opened.frames(range(4)).permute(0, 2, 3, 1).numpy()
        expected = np.stack([pixels(10 + start + t) for t in range(4)])
        np.testing.assert_array_equal(frames, expected)  # their files are kept


def test_smaller_videos(folder, tmp_path):
    recipe = VideoPreparation(10, size=9, seed=None)  # odd, which x264 does not take
    _, _, samples = made(video_folder(folder)["train"], tmp_path / "out", recipe=recipe)
    opened = VideoDecoder()(samples["00000003_a"].data)
    assert opened.frames([0]).shape == (1, 3, 10, 16)
    assert [number_of(frame) for frame in opened] == list(range(11))
    assert VideoDecoder()(samples["00000005_frames_1"].data).frames([10]).shape == (1, 3, 9, 14)


def test_the_same_bytes_every_time(folder, tmp_path):
    source = video_folder(folder)["train"]
    recipe = VideoPreparation(2, size=8, clip_frames=5)
    for workers in (1, 2):
        make_shards(source, tmp_path / str(workers), "train", recipe, workers=workers)
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("1", "2")
    )
    assert one == two


def test_bad_videos_are_left_out_and_named(folder, tmp_path):
    place = folder / "train" / "jump"
    whole = video(10)
    (place / "b.mp4").write_bytes(whole[: len(whole) // 2])
    (place / "c.mp4").write_bytes(video(3))
    (place / "d.avi").write_bytes(b"no video")
    (place / "frames 2").mkdir()
    (place / "frames 2" / "0.jpg").write_bytes(b"no image")
    source = video_folder(folder)["train"]
    with pytest.raises(ShardError, match="of 10 samples are bad"):
        made(source, tmp_path / "out")
    recipe = VideoPreparation(100, min_frames=4, seed=None)
    info, _, _ = made(source, tmp_path / "other", recipe=recipe, max_bad=0.5)
    assert info.num_samples == 6
    named = (tmp_path / "other" / "bad_samples-train.csv").read_text()
    assert 'c,"too short: 3 frames, at least 4 are needed"' in named
    assert "_b," in named and '_d,"not a video' in named and "frames_2" in named


def test_a_table_of_videos(folder, tmp_path):
    table = folder / "list.csv"
    table.write_text(
        "path,label,split\ntrain/run/a.webm,run,train\ntrain/jump/frames 1,jump,train\n"
    )
    _, shards, samples = made(video_table(table)["train"], tmp_path / "out")
    assert list(samples) == ["00000000_a", "00000001_frames_1"] and shards.classes == (
        "jump",
        "run",
    )
    table.write_text("path,label\ntrain/run/a.gif,1\n")
    with pytest.raises(ValueError, match="line 2: a file ending in mp4.*a folder of frames"):
        video_table(table)


def test_folders_that_cannot_be_used(folder, tmp_path):
    (folder / "train" / "jump" / "stray.png").write_bytes(encoded(0))
    with pytest.raises(ValueError, match="jump' has images in it, where videos or folders"):
        video_folder(folder)
    with pytest.raises(ValueError, match="no folder"):
        video_folder(tmp_path / "nothing")
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(ValueError, match="class' has no videos"):
        video_folder(tmp_path / "empty")
    with pytest.raises(ValueError, match="clip_frames must be 1 or more, got 0"):
        VideoPreparation(clip_frames=0)
    with pytest.raises(ValueError, match="crf is a quality of x264, from 0 to 51, got 60"):
        VideoPreparation(crf=60)


def test_a_shard_of_nothing_but_bad_videos_is_left_out(folder, tmp_path):
    for ending in ("mp4", "webm"):
        (folder / "train" / "jump" / f"a.{ending}").write_bytes(b"no video")
    source = video_folder(folder)["train"]
    info, shards, samples = made(source, tmp_path / "out", max_bad=0.4)
    assert info.filenames == ["train-00001.tar", "train-00002.tar"] and len(samples) == 4
    assert not (tmp_path / "out" / "train-00000.tar").exists()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    made(source, tmp_path / "out", max_bad=0.4)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    recipe = VideoPreparation(2, clip_frames=100, seed=None)
    with pytest.raises(ShardError, match="2 of 6 samples are bad.*'00000001_a'.*not a video"):
        made(source, tmp_path / "none", recipe=recipe)
    with pytest.raises(ShardError, match="no sample of the split 'train' is good"):
        made(source, tmp_path / "none", recipe=recipe, max_bad=1.0)


def test_videos_that_break_off_are_not_cut_into_clips(folder, tmp_path, monkeypatch):
    """A decoder that gives fewer frames than the file has."""
    whole = PyAVVideo.__iter__
    monkeypatch.setattr(PyAVVideo, "__iter__", lambda self: islice(whole(self), 6))
    recipe = VideoPreparation(10, clip_frames=4, seed=None)
    source = video_folder(folder)["train"]
    info, _, samples = made(source, tmp_path / "out", recipe=recipe, max_bad=0.8)
    assert info.num_samples == 4 and all("frames_1" in key for key in samples)
    named = (tmp_path / "out" / "bad_samples-train.csv").read_text()
    assert named.count("cut off: 6 of 1") == 4


def test_tables_with_odd_paths(folder, tmp_path):
    (folder / "train" / "run" / "v_1.5s").mkdir()
    (folder / "train" / "run" / "v_1.5s" / "0.png").write_bytes(encoded(0))
    (folder / "train" / "run" / "file").write_bytes(b"x")
    table = folder / "list.csv"
    table.write_text("path,label\ntrain/run/v_1.5s,1\ntrain/run/file,1\n")
    _, _, samples = made(video_table(table)["train"], tmp_path / "out", max_bad=0.5)
    assert list(samples) == ["00000000_v_1_5s"]
    named = (tmp_path / "out" / "bad_samples-train.csv").read_text()
    assert "is no folder of frames" in named


def test_links_that_lead_back(folder):
    place = folder / "train" / "run"
    (place / "again").symlink_to(place)
    assert len(video_folder(folder)["train"]) == 6
