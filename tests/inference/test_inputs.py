"""Which files paths mean, and what a model is given of each."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.samples import Evil, encoded, pixels
from tests.data.video_samples import archive
from vit_rpe.data import BadData, Images, Videos
from vit_rpe.data.errors import NO_MEMORY
from vit_rpe.extras import MissingExtra
from vit_rpe.inference.inputs import Input, Reader, find_inputs


@pytest.fixture
def tree(tmp_path):
    """Images, a video, frames, other files, hidden ones, and a link that leads back."""
    for name in ("b.JPG", "a.png", "in/c.webp", "in/frames/1.png", "in/frames/10.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(1))
    for name in ("v.mp4", "in/notes.txt", "in/README", ".hidden.png", ".git/x.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "in" / "back").symlink_to(tmp_path)
    return tmp_path


def test_a_phones_photo_is_no_video(tmp_path):
    """HEIC lies in the container of mp4; who names one is told which images there are."""
    (tmp_path / "x.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 50)
    reader = Reader(find_inputs([tmp_path / "x.HEIC"]).found, [(Images(), lambda _: None)])
    assert str(reader[0].error).startswith("not an image in one of JPEG")


def names(tree, **options):
    found = find_inputs([tree], **options)
    return [os.path.relpath(each.name, tree) for each in found.found], dict(found.passed_over)


def test_images_of_a_folder(tree):
    images = ["a.png", "b.JPG", "in/c.webp", "in/frames/1.png", "in/frames/10.png"]
    assert names(tree) == (images, {".mp4": 1, ".txt": 1, "no ending": 1})


def test_videos_of_a_folder_are_files_and_folders_of_frames(tree):
    assert names(tree, videos=True) == (
        [".", "v.mp4", "in", "in/frames"],
        {".txt": 1, "no ending": 1},
    )


def test_what_is_named_itself_is_taken(tree):
    given = [tree / "in" / "notes.txt", "nowhere.png", b"bytes", Input("mine", b"more")]
    found = find_inputs(given).found
    assert [each.name for each in found] == [str(given[0]), "nowhere.png", "-", "mine"]
    assert [each.content for each in found[2:]] == [b"bytes", b"more"]


def test_a_folder_that_cannot_be_looked_into_is_bad(tree, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("/in"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = find_inputs([tree]).found
    assert [os.path.relpath(each.name, tree) for each in found] == ["a.png", "b.JPG", "in"]
    with pytest.raises(BadData, match="Permission denied"):
        found[-1].read()


class Raw:
    """A transform that changes nothing."""

    def __call__(self, epoch):
        def pixels_of(x):
            return torch.from_numpy(np.array(x)) if isinstance(x, Image.Image) else x.frames([0, 1])

        return pixels_of


IMAGES, VIDEOS = (Images(), Raw()), (Videos(2), Raw())


def read(content, ways=(IMAGES,)):
    return Reader([Input("x", content)], ways)[0]  # pyright: ignore


def test_pixels_of_bytes_files_and_frames(tree, tmp_path):
    found = read(encoded(5))
    assert found.made_by == 0 and found.error == ""
    assert np.array_equal(found.pixels, pixels(5))
    (tmp_path / "without_ending").write_bytes(encoded(6))
    assert np.array_equal(read(tmp_path / "without_ending").pixels, pixels(6))
    clip = read(archive(3), (VIDEOS, IMAGES))
    assert clip.made_by == 0 and clip.pixels.shape == (2, 3, 9, 14)
    assert read(tree / "in" / "frames", (VIDEOS, IMAGES)).pixels.shape == (2, 3, 9, 14)
    still = read(encoded(5), (VIDEOS, IMAGES))
    assert still.made_by == 1 and np.array_equal(still.pixels, pixels(5))


def test_what_cannot_be_read_has_a_reason(tmp_path, monkeypatch):
    import pickle

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for content, reason in (
        (tmp_path / "nowhere.png", "No such file or directory"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path / "empty", "has no frames"),
        (b"", "not an image"),
        (encoded(1)[:200], "truncated"),
        (pickle.dumps(Evil(tmp_path / "made")), "not an image"),
        (archive(3), "a video or an archive of frames, and the model is of images"),
    ):
        found = read(content)
        assert found.pixels is None and reason in str(found.error)
    assert not (tmp_path / "made").exists()

    def fail(error):
        def decode(*_):
            raise error

        monkeypatch.setattr("vit_rpe.data.images.decode.ImageDecoder.__call__", decode)
        return read(encoded(1)).error

    assert fail(MemoryError()) == NO_MEMORY
    missing = MissingExtra("x needs y")
    assert fail(missing) is missing
    with pytest.raises(RuntimeError, match="ours"):
        fail(RuntimeError("ours"))
