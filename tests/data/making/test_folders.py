"""Folders of images and videos as sources."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.samples import encoded, write_images
from tests.data.video_samples import video
from vit_rpe.data import (
    ShardError,
)
from vit_rpe.data.making import (
    Arrays,
    Files,
    digits,
    image_folder,
    make_shards,
    video_folder,
)


def test_folders_that_cannot_be_used(images, tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        image_folder(tmp_path / "none")
    with pytest.raises(ValueError, match="has no folders, one for each class"):
        image_folder(tmp_path / "images" / "val" / "cat")
    (tmp_path / "images" / "val" / "gnu").mkdir()
    with pytest.raises(ValueError, match="has the class 'gnu', which train has not"):
        image_folder(tmp_path / "images")
    with pytest.raises(ShardError, match="no samples for the split 'train'"):
        make_shards(Arrays(np.empty((0, 2, 2), np.uint8), np.empty(0), ()), tmp_path, "train")
    with pytest.raises(ValueError, match="letters, digits and _, got '../x'"):
        make_shards(digits()["val"], tmp_path, "../x")


def test_files_that_are_passed_over_are_counted(tmp_path):
    write_images(tmp_path, cat=2, dog=2)
    for name in ("cat/a.avif", "cat/deep/b.AVIF", "dog/notes.txt", "dog/README", "list.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    source = image_folder(tmp_path)["train"]
    assert isinstance(source, Files) and len(source) == 4
    assert dict(source.passed_over) == {".avif": 2, ".txt": 2, "no ending": 1}


def test_a_class_without_images_is_refused(tmp_path):
    write_images(tmp_path, cat=2, dog=0)
    with pytest.raises(ValueError, match=r"dog' has no images \(jpg, .*tiff\) in it$"):
        image_folder(tmp_path)
    (tmp_path / "dog" / "a.heic").write_text("x")
    with pytest.raises(ValueError, match=r"dog' has no images .* in it, but 1 x .heic"):
        image_folder(tmp_path)


def test_a_class_may_be_missing_from_the_validation_split(tmp_path):
    write_images(tmp_path / "train", cat=2, dog=2)
    write_images(tmp_path / "val", dog=1)
    assert len(image_folder(tmp_path)["val"]) == 1
    (tmp_path / "val" / "cat").mkdir()
    with pytest.raises(ValueError, match="val/cat' has no images"):
        image_folder(tmp_path)


def test_the_same_for_videos(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.mp4").write_bytes(video(5))
    (tmp_path / "run" / "b.wmv").write_text("x")
    (tmp_path / "run" / "frames").mkdir()
    (tmp_path / "run" / "frames" / "1.png").write_bytes(encoded(1))
    source = video_folder(tmp_path)["train"]
    assert len(source) == 2 and dict(source.passed_over) == {".wmv": 1}  # pyright: ignore
    (tmp_path / "walk").mkdir()
    with pytest.raises(ValueError, match="walk' has no videos"):
        video_folder(tmp_path)
