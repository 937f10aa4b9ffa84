"""Predictions as text, and as a picture."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import pixels
from vit_rpe.inference import (
    Guess,
    Prediction,
    as_csv,
    as_json,
    as_png,
    as_table,
    picture_grid,
    pictures,
)
from vit_rpe.inference.pictures import GAP, LINE, SIDE

PREDICTIONS = [
    Prediction("a.png", (Guess("cat", 2, 0.75), Guess("a, long \x1b[31m name", 0, 0.25))),
    Prediction('we"ird\n\udcff.png', (Guess("dog\u00fc", 1, 0.5), Guess("cat", 2, 0.5))),
    Prediction("bad.png", error="not an image"),
]


def test_table():
    lines = as_table(PREDICTIONS).splitlines()
    assert lines == [
        "a.png               cat 75.0 %   a, long \\x1b[31m name 25.0 %",
        'we"ird\\n\\udcff.png  dogü 50.0 %  cat 50.0 %',
        "bad.png             bad: not an image",
    ]
    assert as_table([]) == ""


def test_csv_and_json_hold_everything():
    rows = list(csv.DictReader(io.StringIO(as_csv(PREDICTIONS))))
    assert [row["file"] for row in rows] == ["a.png"] * 2 + [PREDICTIONS[1].file] * 2 + ["bad.png"]
    assert rows[1] == {
        **{"file": "a.png", "rank": "2", "class": "a, long \x1b[31m name", "index": "0"},
        **{"probability": "0.25", "error": ""},
    }
    assert rows[4]["error"] == "not an image" and rows[4]["class"] == ""
    first, second, bad = json.loads(as_json(PREDICTIONS))
    assert first["predictions"][0] == {"class": "cat", "index": 2, "probability": 0.75}
    assert second["file"] == PREDICTIONS[1].file
    assert bad == {"file": "bad.png", "error": "not an image"}


def shown(count: int, **options) -> list[Prediction]:
    guesses = (Guess("cat", 0, 0.5), Guess("an extraordinarily long name of a class", 1, 0.25))
    picture = np.full((8, 12, 3), 255, np.uint8)
    picture[:, :6] = (255, 0, 0)
    return [Prediction(f"{n}.png", guesses, picture=picture, **options) for n in range(count)]


def test_the_grid_has_a_cell_for_each_picture():
    cell = (SIDE + GAP, SIDE + GAP + 3 * LINE)
    for count, columns, rows in ((1, 1, 1), (2, 2, 1), (5, 3, 2), (103, 10, 10)):
        sheet = picture_grid(shown(count))
        assert sheet.size == (columns * cell[0] + GAP, rows * cell[1] + GAP)
    sheet = np.asarray(picture_grid([*PREDICTIONS, *shown(1)]))  # only one has a picture
    middle = GAP + SIDE // 2
    assert (sheet[middle, GAP + 4] == (255, 0, 0)).all()  # its left half is red, sharply
    assert (sheet[middle, GAP + SIDE // 2 - 1] == (255, 0, 0)).all()
    assert (sheet[middle, GAP + SIDE // 2 + 1] == 255).all()
    assert (sheet[GAP + 4, middle] == 255).all()  # wider than high: white above
    bars = [(sheet[GAP + SIDE + n * LINE + 2, GAP : GAP + SIDE] < 250).any(1) for n in (1, 2)]
    assert [bar.sum() for bar in bars] == pytest.approx([SIDE / 2, SIDE / 4], abs=2)
    # nothing is written beyond a cell
    assert (sheet[:, GAP + SIDE :] == 255).all()


def test_a_white_picture_has_a_frame():
    white = Prediction("x", (Guess("cat", 0, 0.5),), picture=np.full((8, 12, 3), 255, np.uint8))
    cell = np.asarray(picture_grid([white]))[GAP : GAP + SIDE, GAP : GAP + SIDE]
    framed = np.flatnonzero((cell < 255).any(2).sum(1) == SIDE)
    assert framed.tolist() == [SIDE // 6, SIDE - SIDE // 6 - 1]  # above and below it


def test_letters_that_the_font_lacks_are_written_without_their_accents(monkeypatch):
    def drawn(name: str) -> bytes:
        picture = np.zeros((8, 8, 3), np.uint8)
        return as_png([Prediction("x", (Guess(name, 0, 0.5),), picture=picture)])

    monkeypatch.setattr(pictures, "FONTS", ("no font.ttf",))
    pictures._font.cache_clear()
    try:
        assert drawn("M\u00fcsli") == drawn("Musli") and drawn("\u4e2d") == drawn("?")
    finally:
        pictures._font.cache_clear()


def test_png():
    assert Image.open(io.BytesIO(as_png(shown(2)))).format == "PNG"
    with pytest.raises(ValueError, match="no picture to draw"):
        as_png(PREDICTIONS)


def test_large_pictures_are_made_smaller():
    large = Prediction(
        "x", (Guess("cat", 0, 1.0),), picture=np.tile(pixels(1, 300, 500), (1, 1, 1))
    )
    tall = Prediction("x", (Guess("cat", 0, 0.0),), picture=pixels(2, 900, 2))
    sheet = np.asarray(picture_grid([large, tall]))
    assert sheet.shape[1] == 2 * (SIDE + GAP) + GAP
