"""Video files: frames by number, seeking, damage, missing decoders."""

from __future__ import annotations

import io
import sys

import av
import numpy as np
import pytest
import torch

from tests.data.samples import encoded
from tests.data.video_samples import (
    CONTAINERS,
    archive,
    number_of,
    remuxed,
    swapped_pictures,
    turned,
    video,
)
from vit_rpe.data import BadData, VideoDecoder
from vit_rpe.data.videos.containers import check_all
from vit_rpe.extras import MissingExtra


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


def test_what_an_edit_list_hides_is_not_counted():
    opened = VideoDecoder()(remuxed(video(30), first=10))
    assert opened.num_frames == 20
    assert [number_of(frame) for frame in opened] == list(range(10, 30))
    check_all(opened)
    for number in range(20):
        frames = opened.frames([number, 19]).permute(0, 2, 3, 1).numpy()
        assert [number_of(frame) for frame in frames] == [number + 10, 29]


def test_a_seek_that_goes_too_far_is_made_good():
    """AVI files with frames out of order, and key frames where the encoder sees a new scene."""
    scenes = np.random.default_rng(0).integers(0, 256, (40, 32, 48, 3), dtype=np.uint8)
    stream = io.BytesIO()
    with av.open(stream, "w", format="avi") as file:
        track = file.add_stream("mpeg4", rate=10, options={"g": "10", "bf": "2"})
        track.height, track.width, track.bit_rate = 32, 48, 4_000_000
        track.pix_fmt = "yuv420p"
        for frame in scenes:
            file.mux(track.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(track.encode())
    opened = VideoDecoder()(stream.getvalue())
    everything = list(opened)
    for number in range(opened.num_frames):
        frame = opened.frames([number])[0].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(frame, everything[number])


def test_turned_videos_are_seen_as_people_see_them():
    plain, opened = (VideoDecoder()(data) for data in (video(3, "mov"), turned(video(3, "mov"))))
    expected = torch.rot90(plain.frames([1]), -1, (2, 3))  # clockwise
    assert expected.shape == (1, 3, 40, 24)
    assert torch.equal(opened.frames([1]), expected)


def test_pictures_larger_than_the_header_says():
    """The first is as large as it says: who looks at that one alone is not warned."""
    small, large = (encoded(0, "JPEG", height=h, width=w) for h, w in ((24, 40), (600, 800)))
    data = swapped_pictures(video(3, "mov"), [small] * 3 + [large] * 3)
    opened = VideoDecoder(max_pixels=100_000)(data)
    assert opened.frames([1]).shape == (1, 3, 24, 40)
    for read in (lambda: opened.frames([4]), lambda: list(opened)):
        with pytest.raises(BadData):
            read()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_cut_off_file_with_its_index_in_front_is_bad(share):
    stream = io.BytesIO()
    with av.open(io.BytesIO(video(30))) as source:
        options = {"movflags": "faststart+frag_keyframe+empty_moov"}
        with av.open(stream, "w", format="mp4", options=options) as target:
            new = target.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = new
                    target.mux(packet)
    data = stream.getvalue()
    check_all(VideoDecoder()(data))
    with pytest.raises(BadData, match="cut off: "):
        VideoDecoder()(data[: int(share * len(data))])


@pytest.mark.parametrize("ending", ["mp4", "avi"])
def test_damage_in_the_middle_is_found(ending):
    """Not every bit matters; most damage must not pass as good frames."""
    data, found = video(30, ending, height=96, width=160), 0
    for seed in range(8):
        draw = np.random.default_rng(seed)
        start = int(draw.integers(len(data) // 4, len(data) * 3 // 4))
        damaged = data[:start] + draw.bytes(200) + data[start + 200 :]
        try:
            check_all(VideoDecoder()(damaged))
        except BadData:
            found += 1
    assert found >= 5


@pytest.mark.parametrize("ending", CONTAINERS)
def test_a_video_that_is_cut_off_is_bad(ending):
    data = video(30, ending)
    data = data[: len(data) * 2 // 3]
    with pytest.raises(BadData):
        VideoDecoder()(data).frames([0, 29])


@pytest.mark.parametrize(
    ("backend", "package", "message"),
    [
        ("pyav", "av", r"pip install 'vit_rpe\[video\]'"),
        ("torchcodec", "torchcodec", "no torchcodec"),
    ],
)
def test_a_decoder_that_is_not_there(monkeypatch, backend, package, message):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=message):
        VideoDecoder(backend)(video(3))
    assert VideoDecoder(backend)(archive(0)).num_frames == 6  # frames need neither


def test_torchcodec_sees_what_pyav_sees():
    try:
        theirs = VideoDecoder("torchcodec")(video(30))
    except MissingExtra as error:
        pytest.skip(str(error))
    ours = VideoDecoder()(video(30))
    assert ours.num_frames == theirs.num_frames
    a, b = (opened.frames([2, 9, 29]).float() for opened in (ours, theirs))
    assert (a - b).abs().max() <= 4
    assert [number_of(frame) for frame in theirs] == list(range(30))
