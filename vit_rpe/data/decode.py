"""Bytes of an image to pixels: named, safe formats only, and never more pixels than allowed."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image

from .errors import BadData

# Formats that PIL reads by itself. Others can do more than hold pixels: EPS starts Ghostscript.
SAFE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
MAX_PIXELS = 89_478_485  # PIL's own first limit: a quarter of a gigabyte in RGB


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes to a PIL image of one mode, RGB or L."""

    mode: str = "RGB"
    max_pixels: int = MAX_PIXELS

    def __call__(self, data: bytes) -> Image.Image:
        try:
            image = Image.open(io.BytesIO(data), formats=SAFE_FORMATS)
            width, height = image.size
            if width * height > self.max_pixels:
                raise BadData(f"decompression bomb: {width} x {height} > {self.max_pixels} pixels")
            image.load()
            return image if image.mode == self.mode else image.convert(self.mode)
        except BadData:
            raise
        except Image.UnidentifiedImageError:
            raise BadData(f"not an image in one of {', '.join(SAFE_FORMATS)}") from None
        except Image.DecompressionBombError as error:
            raise BadData(f"decompression bomb: {error}") from None
        except Exception as error:  # the decoders of PIL raise what they like
            raise BadData(f"{type(error).__name__}: {error}") from None
