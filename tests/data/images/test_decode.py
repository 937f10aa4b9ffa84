"""Pixels of images: orientation, depth, range, number."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import pixels
from vit_rpe.data import (
    BadData,
    ImageDecoder,
)
from vit_rpe.data.making import ImagePreparation
from vit_rpe.data.making.sources import as_png

# how a picture is stored, by orientation, so that it is this one when it is turned as EXIF says
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


def with_orientation(array: np.ndarray, orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    options = {"lossless": True} if kind == "WEBP" else {}
    stored = np.ascontiguousarray(STORED[orientation](array))
    Image.fromarray(stored).save(stream, format=kind, exif=exif, **options)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
def test_images_are_turned_as_exif_says(orientation, kind):
    image = ImageDecoder()(with_orientation(pixels(1), orientation, kind))
    np.testing.assert_array_equal(np.asarray(image), pixels(1))
    assert image.getexif().get(0x0112, 1) == 1  # nobody turns it again


@pytest.mark.parametrize("orientation", [1, 6, 8])
def test_a_photo_is_upright_after_re_encoding(orientation):
    smooth = np.zeros((72, 96, 3), np.uint8)
    smooth[:20, :30] = 255  # bright at the top on the left
    data = with_orientation(smooth, orientation, "JPEG")
    (part,) = ImagePreparation(size=36).prepare(data, "jpg")
    with Image.open(io.BytesIO(part.data)) as stored:
        assert stored.size == (48, 36) and 0x0112 not in stored.getexif()
        assert stored.getpixel((3, 3))[0] > 200 > 50 > stored.getpixel((44, 3))[0]  # pyright: ignore
    (kept,) = ImagePreparation().prepare(data, "jpg")
    assert kept.data == data and ImageDecoder()(kept.data).size == (96, 72)
    image = Image.open(io.BytesIO(data))
    turned = Image.open(io.BytesIO(as_png(image)))  # as datasets of torchvision give them
    assert turned.size == (96, 72) and 0x0112 not in turned.getexif()


def test_exif_that_is_spoilt_turns_nothing():
    stream = io.BytesIO()
    Image.fromarray(pixels(1)).save(stream, format="PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff12")
    np.testing.assert_array_equal(np.asarray(ImageDecoder()(stream.getvalue())), pixels(1))


def stored(array: np.ndarray, kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format=kind)
    return stream.getvalue()


RAMP = np.linspace(0, 1, 60).reshape(6, 10)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_sixteen_bits_are_scaled_to_eight(kind, mode):
    deep = (RAMP * 65535).round().astype(np.uint16)
    image = np.asarray(ImageDecoder(mode)(stored(deep, kind)))
    image = image if mode == "L" else image[..., 0]
    np.testing.assert_array_equal(image, (deep / 257).round())
    assert image.min() == 0 and image.max() == 255


def test_sixteen_bits_of_the_other_byte_order():
    deep = (RAMP * 65535).round().astype(np.uint16)
    image = Image.frombytes("I;16B", (10, 6), deep.astype(">u2").tobytes())
    stream = io.BytesIO()
    image.save(stream, format="TIFF")
    decoded = ImageDecoder("L")(stream.getvalue())
    np.testing.assert_array_equal(np.asarray(decoded), (deep / 257).round())


@pytest.mark.parametrize("top", [1, 255])
def test_floats_are_from_0_to_1_or_to_255(top):
    image = ImageDecoder("L")(stored((RAMP * top).astype(np.float32), "TIFF"))
    assert abs(np.asarray(image) - RAMP * 255).max() <= 0.5


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[0, 70_000]], np.int32), "values from 0 to 70000, from 0 to 65535 are expected"),
        (np.array([[-5, 7]], np.int32), "values from -5 to 7"),
        (np.array([[0, 300]], np.float32), "values from 0 to 300, from 0 to 1 or to 255"),
        (np.array([[0, np.nan]], np.float32), "values from nan to nan"),
        (np.array([[0, np.inf]], np.float32), "values from 0 to inf"),
    ],
)
def test_values_without_a_known_range_are_bad(array, message):
    with pytest.raises(BadData, match=message):
        ImageDecoder()(stored(array, "TIFF"))
