"""Encoders give the same bytes every time."""

from __future__ import annotations

from tests.data.video_samples import (
    number_of,
    numbered,
)
from vit_rpe.data import VideoDecoder
from vit_rpe.data.making import frame_archive, h264


def test_encoding_is_the_same_every_time():
    frames = numbered(12)
    assert h264(frames) == h264(frames) != h264(frames, crf=40)
    opened = VideoDecoder()(h264(frames))
    assert [number_of(frame) for frame in opened] == list(range(12))
    assert frame_archive([("png", b"1")]) == frame_archive([("png", b"1")])
