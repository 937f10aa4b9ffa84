"""Bytes of an image to pixels: named, safe formats only, and never more pixels than allowed.

Images are turned as their EXIF orientation says. Values of 16 bits (also in PIL's mode I) are
scaled from 0 ... 65535 to 0 ... 255, floats from 0 ... 1, or taken as they are up to 255 if one is
above 1. The brightness of values beyond these ranges is unknown: such an image is bad.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image
from PIL.ExifTags import Base
from PIL.Image import Transpose

from vit_rpe.messages import cut

from ..errors import BadData

# in order of preference, should a sample have several; timm calls JPEGs jpg
IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "ppm", "tif", "tiff")
# Formats that PIL reads by itself. Others can do more than hold pixels: EPS starts Ghostscript.
SAFE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
MAX_PIXELS = 89_478_485  # PIL's own first limit: a quarter of a gigabyte in RGB
MAX_CLIP_PIXELS = 500_000_000  # of all frames of a clip: a gigabyte and a half
_TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class ImageDecoder:
    """Decode bytes to an upright PIL image of one mode, RGB or L."""

    mode: str = "RGB"
    max_pixels: int = MAX_PIXELS

    def __call__(self, data: bytes) -> Image.Image:
        try:
            image = Image.open(io.BytesIO(data), formats=SAFE_FORMATS)
            width, height = image.size
            if width * height > self.max_pixels:
                raise BadData(f"decompression bomb: {width} x {height} > {self.max_pixels} pixels")
            image.load()
            image = _eight_bits(upright(image))
            return image if image.mode == self.mode else image.convert(self.mode)
        except BadData:
            raise
        except Image.UnidentifiedImageError:
            raise BadData(f"not an image in one of {', '.join(SAFE_FORMATS)}") from None
        except Image.DecompressionBombError as error:
            raise BadData(f"decompression bomb: {error}") from None
        except OSError as error:
            raise BadData(f"a damaged image: {cut(error)}") from None
        except Exception as error:  # the decoders of PIL raise what they like
            raise BadData(f"a damaged image: {type(error).__name__}: {cut(error)}") from None


def upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF orientation says, which is then dropped."""
    try:
        orientation = image.getexif().get(Base.Orientation)
    except Exception:  # EXIF of cameras and programs of all kinds: damaged ones turn nothing
        return image
    if orientation not in _TURNS:
        return image
    turned = image.transpose(_TURNS[orientation])
    for name in ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"):
        turned.info.pop(name, None)
    return turned


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale an image to bytes; PIL would cut off all values above 255."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    low, high = values.min(), values.max()
    wanted = "to 1 or to 255" if image.mode == "F" else "to 65535"
    if not 0 <= low <= high <= (255 if image.mode == "F" else 65535):
        raise BadData(f"values from {low:g} to {high:g}, from 0 {wanted} are expected")
    if image.mode == "F":
        scaled = np.rint(values * np.float32(255 if high <= 1 else 1))
    else:
        scaled = (values.astype(np.int32) + 128) // 257  # rounded
    return Image.fromarray(scaled.astype(np.uint8))


def check_resized(
    width: int, height: int, side: int, *, frames: int = 1, longer: bool = False
) -> None:
    """Raise BadData if resizing would make too many pixels, as it can of an image one pixel wide.

    `side` is the new length of the shorter or the longer side.
    """
    scale = side / (max if longer else min)(width, height)
    new = round(width * scale), round(height * scale)
    most = MAX_PIXELS if frames == 1 else MAX_CLIP_PIXELS
    if min(new) < 1 or new[0] * new[1] * frames > most:
        which, of = "longer" if longer else "shorter", f" in {frames} frames" if frames > 1 else ""
        raise BadData(
            f"resized to a {which} side of {side} it would have {new[0]} x {new[1]} pixels{of}"
        )
