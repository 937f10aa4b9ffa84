"""Videos to frames: the right ones, from any container, and one reason for each bad video."""

from __future__ import annotations

import io
import sys
import zipfile

import numpy as np
import pytest
import torch

from tests.data.samples import encoded, pixels
from tests.data.videos import CONTAINERS, archive, number_of, numbered, video
from vit_rpe.data import BadData, ShardError, VideoDecoder
from vit_rpe.data.encode import frame_archive, h264


@pytest.mark.parametrize("ending", CONTAINERS)
class TestFiles:
    def test_frames_are_the_ones_asked_for(self, ending):
        opened = VideoDecoder()(video(30, ending))
        assert opened.num_frames == 30
        for numbers in ([0], [29], [3, 4, 17], list(range(5, 30, 6)), [12, 2, 12]):
            frames = opened.frames(numbers)
            assert frames.shape == (len(numbers), 3, 24, 40) and frames.dtype == torch.uint8
            assert [number_of(f) for f in frames.permute(0, 2, 3, 1).numpy()] == numbers

    def test_a_seek_gives_the_same_pixels_as_reading_all(self, ending):
        opened = VideoDecoder()(video(30, ending))
        everything = list(opened)
        assert [number_of(frame) for frame in everything] == list(range(30))
        for number in (0, 6, 7, 20, 29):
            frame = opened.frames([number])[0].permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(frame, everything[number])


def test_archives_keep_their_pixels():
    opened = VideoDecoder()(archive(3, count=5))
    assert opened.num_frames == 5
    expected = np.stack([pixels(300 + t) for t in (4, 1)])
    np.testing.assert_array_equal(opened.frames([4, 1]).permute(0, 2, 3, 1).numpy(), expected)
    assert len(list(opened)) == 5


def compressed() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("0.png", b"\0" * 100_000)
    return stream.getvalue()


def uneven() -> bytes:
    return frame_archive([("png", encoded(0)), ("png", encoded(1, height=5))])


BAD = {
    "a text": (b"no video at all", "not a video in one of mp4"),
    "nothing": (b"", "not a video in one of mp4"),
    "a playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "not a video in one of mp4"),
    "a list of files": (b"ffconcat version 1.0\nfile x.mp4\n", "not a video in one of mp4"),
    "a head alone": (video(30)[:40], "InvalidDataError"),
    "no frames": (frame_archive([]), "not a video|without frames"),
    "compressed frames": (compressed(), "must be stored"),
    "no images": (frame_archive([("png", b"x"), ("png", b"y")]), "not an image"),
    "frames of two sizes": (uneven(), "different sizes"),
    "a damaged archive": (archive(0)[:700], "BadZipFile"),
}


@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD)
def test_bad_videos_say_why(data, reason):
    with pytest.raises(BadData, match=reason) as raised:
        VideoDecoder()(data).frames([0, 1])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("ending", CONTAINERS)
def test_a_video_that_is_cut_off_is_bad(ending):
    data = video(30, ending)
    data = data[: len(data) * 2 // 3]
    with pytest.raises(BadData):
        VideoDecoder()(data).frames([0, 29])


def test_more_pixels_than_allowed():
    for data in (video(3), archive(0)):
        with pytest.raises(BadData, match="decompression bomb"):
            VideoDecoder(max_pixels=100)(data).frames([0])


@pytest.mark.parametrize(
    ("backend", "package", "message"),
    [
        ("pyav", "av", r"pip install vit_rpe\[video\]"),
        ("torchcodec", "torchcodec", "no torchcodec"),
    ],
)
def test_a_decoder_that_is_not_there(monkeypatch, backend, package, message):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ShardError, match=message):
        VideoDecoder(backend)(video(3))
    assert VideoDecoder(backend)(archive(0)).num_frames == 6  # frames need neither


def test_torchcodec_sees_what_pyav_sees():
    try:
        theirs = VideoDecoder("torchcodec")(video(30))
    except ShardError as error:
        pytest.skip(str(error))
    ours = VideoDecoder()(video(30))
    assert ours.num_frames == theirs.num_frames
    a, b = (opened.frames([2, 9, 29]).float() for opened in (ours, theirs))
    assert (a - b).abs().max() <= 4
    assert [number_of(frame) for frame in theirs] == list(range(30))


def test_an_unknown_backend():
    with pytest.raises(ValueError, match="one of pyav, torchcodec, got 'ffmpeg'"):
        VideoDecoder("ffmpeg")


def test_encoding_is_the_same_every_time():
    frames = numbered(12)
    assert h264(frames) == h264(frames) != h264(frames, crf=40)
    opened = VideoDecoder()(h264(frames))
    assert [number_of(frame) for frame in opened] == list(range(12))
    assert frame_archive([("png", b"1")]) == frame_archive([("png", b"1")])
