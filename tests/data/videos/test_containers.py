"""Archives of frames, and the kinds of videos that are opened."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from tests.data.samples import encoded, pixels
from tests.data.video_samples import (
    archive,
    video,
)
from vit_rpe.data import BadData, VideoDecoder
from vit_rpe.data.making import frame_archive


def test_archives_keep_their_pixels():
    opened = VideoDecoder()(archive(3, count=5))
    assert opened.num_frames == 5
    expected = np.stack([pixels(300 + t) for t in (4, 1)])
    np.testing.assert_array_equal(opened.frames([4, 1]).permute(0, 2, 3, 1).numpy(), expected)
    assert len(list(opened)) == 5


class TestArchives:
    def test_names_are_in_the_order_of_their_numbers(self):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as file:
            file.writestr("clip/", b"")
            for t in (10, 9, 2, 1, 0):
                file.writestr(f"clip/frame_{t}.png", encoded(t))
            file.writestr("clip/Thumbs.db", b"x")
        opened = VideoDecoder()(stream.getvalue())
        expected = np.stack([pixels(t) for t in (0, 1, 2, 9, 10)])
        np.testing.assert_array_equal(np.stack(list(opened)), expected)

    @pytest.mark.parametrize("name", ["²", "9" * 5000])
    def test_odd_names_stop_nothing(self, name):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as file:
            file.writestr(f"1{name}1/{name}.png", encoded(0))
        if len(name) > 1:  # more digits than Python makes a number of
            with pytest.raises(BadData, match="ValueError"):
                VideoDecoder()(stream.getvalue())
        else:
            assert VideoDecoder()(stream.getvalue()).num_frames == 1

    def test_a_large_frame_behind_small_ones_is_refused(self, monkeypatch):
        monkeypatch.setattr("vit_rpe.data.videos.containers.MAX_CLIP_PIXELS", 1000)
        files = [encoded(0, height=5, width=5), encoded(1, height=40, width=40)]
        opened = VideoDecoder()(frame_archive(("png", file) for file in files))
        with pytest.raises(BadData, match="decompression bomb: 2 frames of 40 x 40"):
            opened.frames([0, 1])

    def test_a_clip_of_large_frames_is_refused(self, monkeypatch):
        monkeypatch.setattr("vit_rpe.data.videos.containers.MAX_CLIP_PIXELS", 4 * 9 * 14)
        opened = VideoDecoder()(archive(0))
        assert opened.frames(range(4)).shape[0] == 4
        with pytest.raises(BadData, match="decompression bomb: 5 frames of 14 x 9"):
            opened.frames(range(5))


def compressed() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("0.png", b"\0" * 100_000)
    return stream.getvalue()


def uneven() -> bytes:
    return frame_archive([("png", encoded(0)), ("png", encoded(1, height=5))])


BAD = {
    "a text": (b"no video at all", "not a video in one of mp4"),
    "a phone's photo": (b"\0\0\0\x18ftypheic" + b"\0" * 50, "a photo in HEIC or AVIF"),
    "nothing": (b"", "not a video in one of mp4"),
    "a playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "not a video in one of mp4"),
    "a list of files": (b"ffconcat version 1.0\nfile x.mp4\n", "not a video in one of mp4"),
    "a head alone": (video(30)[:40], "InvalidDataError"),
    "a box cut off": (video(30)[:50], "cut off: 50 bytes"),
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


def test_more_pixels_than_allowed():
    for data in (video(3), archive(0)):
        with pytest.raises(BadData, match="decompression bomb"):
            VideoDecoder(max_pixels=100)(data).frames([0])


def test_an_unknown_backend():
    with pytest.raises(ValueError, match="one of pyav, torchcodec, got 'ffmpeg'"):
        VideoDecoder("ffmpeg")
