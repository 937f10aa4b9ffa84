"""Images or videos: what differs between them is asked of one object."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.samples import encoded, make_set, write_shard
from tests.data.video_samples import archive, clip_sample
from vit_rpe.data import (
    BadData,
    ClipTransform,
    ImageDecoder,
    Images,
    ImageTransform,
    Videos,
    holds_videos,
    modality_of,
    open_shards,
    recorded_modality,
    try_decoder,
)
from vit_rpe.data.making import ImagePreparation, VideoPreparation


@pytest.fixture
def clips(tmp_path):
    keys = ("a-clip000", "a-clip001", "b-clip000")
    samples = [{**clip_sample(i), "__key__": key, "cls": b"3"} for i, key in enumerate(keys)]
    return open_shards(str(write_shard(tmp_path / "v.tar", samples)), endings=Videos.endings)


def test_frames_make_the_difference():
    assert modality_of(None) == Images()
    chosen = modality_of(8, stride=None, clips=2, crops=3, backend="torchcodec")
    assert chosen == Videos(8, None, 2, 3, "torchcodec")
    assert chosen.single_view() == Videos(8, None, 1, 1, "torchcodec")
    assert Images().single_view() == Images()


def test_words():
    images, videos = Images(), Videos()
    assert (images.sample, images.unit, images.evaluated, images.command) == (
        *("image", "img", "img", "folder"),
    )
    assert (videos.sample, videos.unit, videos.evaluated, videos.command) == (
        *("clip", "clips", "videos", "video"),
    )


def test_shards_record_their_modality():
    assert recorded_modality(VideoPreparation().record()) == Videos()
    assert recorded_modality(ImagePreparation().record()) == recorded_modality({}) == Images()


def test_transforms_are_of_the_modality():
    images = Images().transform(16, training=True, options={})
    assert isinstance(images, ImageTransform) and images.shape(0) == (3, 16, 16)
    views = Videos(4, clips=2, crops=3).transform(16, training=False, options={})
    assert isinstance(views, ClipTransform) and views.shape(0) == (6, 3, 4, 16, 16)


def test_videos_are_judged_together_and_images_are_not(clips, tmp_path):
    assert Videos(2).groups(clips).tolist() == [0, 0, 1]  # pyright: ignore
    assert Images().groups(clips) is None


def test_all_of_a_sample_is_checked():
    Images().check(encoded(0))
    with pytest.raises(BadData):
        Images(ImageDecoder(max_pixels=10)).check(encoded(0))
    whole = archive(0)
    Videos().check(whole)
    last = whole.rindex(b"IDAT")
    broken = whole[: last + 10] + bytes(20) + whole[last + 30 :]
    Videos().decode(broken)  # opening does not show it
    with pytest.raises(BadData):
        Videos().check(broken)


def test_shards_tell_what_they_hold(clips, tmp_path):
    images = make_set(tmp_path / "images", (3,))
    assert holds_videos(clips) and not holds_videos(images)
    for modality, shards in ((Images(), images), (Videos(), clips), (Videos(), images)):
        try_decoder(modality, shards)  # a bad sample is no missing decoder


def test_gray_images_by_a_decoder_of_ones_own():
    assert np.asarray(Images(ImageDecoder("L")).decode(encoded(0))).ndim == 2
