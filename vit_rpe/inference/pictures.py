"""A grid of pictures, each as the model saw it, with the classes that it says below."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vit_rpe.messages import printable

from .predictions import Guess, Prediction
from .tables import percent

MOST = 100  # pictures of a grid: more are not looked at
SIDE = 192  # of a picture, in pixels
LINES = 3  # classes below a picture
GAP, LINE, TEXT = 16, 24, 14  # between cells; height of a line; size of its letters
INK, PALE, BAR, FRAME = "#1a1a1a", "#6b6b6b", "#9fd3e6", "#cccccc"
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial.ttf")  # they have accents
SMALL = 64  # a side below which pixels are shown as squares


def picture_grid(predictions: Sequence[Prediction]) -> Image.Image:
    """Draw the first MOST predictions that have a picture, about as many rows as columns."""
    shown = [each for each in predictions if each.picture is not None][:MOST]
    if not shown:
        raise ValueError("there is no picture to draw: all files are bad")
    columns = math.ceil(math.sqrt(len(shown)))
    lines = min(LINES, max(len(each.guesses) for each in shown))
    width, height = SIDE + GAP, SIDE + GAP + (1 + lines) * LINE
    rows = -(-len(shown) // columns)
    sheet = Image.new("RGB", (columns * width + GAP, rows * height + GAP), "white")
    for number, each in enumerate(shown):
        row, column = divmod(number, columns)
        _draw(sheet, each, GAP + column * width, GAP + row * height)
    return sheet


def as_png(predictions: Sequence[Prediction]) -> bytes:
    """Return the grid as the bytes of a PNG file."""
    stream = io.BytesIO()
    picture_grid(predictions).save(stream, format="PNG")
    return stream.getvalue()


def _draw(sheet: Image.Image, prediction: Prediction, left: int, top: int) -> None:
    assert prediction.picture is not None
    sheet.paste(_scaled(prediction.picture), (left, top))
    draw, font = ImageDraw.Draw(sheet), _font()
    below = top + SIDE
    name = printable(prediction.file.rsplit("/", 1)[-1])
    _text(draw, font, (left, below), name, PALE, SIDE)
    for guess in prediction.guesses[:LINES]:
        below += LINE
        _line(draw, font, guess, left, below)


def _line(
    draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, guess: Guess, left: int, top: int
) -> None:
    """Draw a class, its percentage, and a bar of that length behind them."""
    right = left + round((SIDE - 1) * guess.probability)
    draw.rectangle((left, top + 1, right, top + LINE - 3), BAR if guess.probability else None)
    number = percent(guess.probability)
    width = draw.textlength(number, font)
    _text(draw, font, (left + 4, top), printable(guess.name), INK, SIDE - width - 16)
    _text(draw, font, (left + SIDE - width - 4, top), number, INK, SIDE)


def _text(
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont,
    place: tuple[float, float],
    text: str,
    color: str,
    room: float,
) -> None:
    """Write a line, with dots in its middle if there is no room for it."""
    text = _plain(text) if font is _pillows_font() else text
    kept = text[:SIDE]  # a letter has at least a pixel
    while draw.textlength(text, font) > room and len(kept) > 1:
        kept = kept[: len(kept) // 2] + kept[len(kept) // 2 + 1 :]
        text = f"{kept[: len(kept) // 2]}...{kept[len(kept) // 2 :]}"
    draw.text((place[0], place[1] + LINE / 2 - 1), text, color, font, anchor="lm")


@cache
def _font() -> ImageFont.FreeTypeFont:
    """Return a font of this machine, or Pillow's own."""
    for name in FONTS:
        try:
            return ImageFont.truetype(name, TEXT)
        except OSError:
            continue
    return _pillows_font()


@cache
def _pillows_font() -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(TEXT)
    assert isinstance(font, ImageFont.FreeTypeFont)  # as Pillow has it for letters of any size
    return font


def _plain(text: str) -> str:
    """Return a text in the letters of Pillow's font, which knows no accents: Müsli is Musli."""
    parts = unicodedata.normalize("NFKD", text)  # a letter, then its accents
    letters = "".join(each for each in parts if not unicodedata.combining(each))
    return letters.encode("ascii", "replace").decode()


def _scaled(pixels: NDArray[np.uint8]) -> Image.Image:
    """Fit a picture into its square, in the middle of it."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = SIDE / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    how = Image.Resampling.NEAREST if max(image.size) <= SMALL else Image.Resampling.LANCZOS
    cell = Image.new("RGB", (SIDE, SIDE), "white")
    left, top = (SIDE - size[0]) // 2, (SIDE - size[1]) // 2
    cell.paste(image.resize(size, how), (left, top))  # pyright: ignore
    edges = (left, top, left + size[0] - 1, top + size[1] - 1)
    ImageDraw.Draw(cell).rectangle(edges, outline=FRAME)  # a white picture is one, too
    return cell
