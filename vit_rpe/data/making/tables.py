"""Sources in CSV files: the columns path, label and, if wanted, split."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from vit_rpe.files import read_regular
from vit_rpe.messages import shown

from ..images.decode import IMAGE_ENDINGS
from ..shards.layout import LARGEST_LABEL
from ..videos.containers import VIDEO_ENDINGS
from .sources import Files, Source


def csv_file(
    path: str | Path,
    root: str | Path | None = None,
    endings: Sequence[str] = IMAGE_ENDINGS,
) -> dict[str, Source]:
    """Read a table of files; paths are relative to `root`, or to the folder of the table.

    Labels are numbers, or names, which are then numbered in the order of the alphabet.
    """
    base = Path(root) if root is not None else Path(path).parent
    rows = _rows_of(path)
    for line, row in enumerate(rows, 2):
        _check_row(row, f"{path}, line {line}", base, endings)
    numeric = _are_numbers([row["label"] for row in rows], path)
    classes = [] if numeric else sorted({row["label"] for row in rows})
    numbers = {name: number for number, name in enumerate(classes)}
    number = int if numeric else numbers.__getitem__
    splits: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        splits.setdefault(row.get("split") or "train", []).append(row)
    return {
        name: Files(base, [r["path"] for r in part], [number(r["label"]) for r in part], classes)
        for name, part in splits.items()
    }


def _rows_of(path: str | Path) -> list[dict[str, str]]:
    try:
        text = read_regular(path).decode("utf-8-sig")  # with a byte order mark or without
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}") from None
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = table.fieldnames
        if not {"path", "label"} <= set(columns or ()):
            got = shown(columns) if columns else "none"
            raise ValueError(f"{path} needs the columns path and label, got {got}")
        rows = list(table)
    except csv.Error as error:
        raise ValueError(f"{path}, after line {table.line_num}: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def _are_numbers(labels: Sequence[str], path: str | Path) -> bool:
    """Tell whether labels are numbers; a slip in one must not make names of all the others."""
    numeric = [re.fullmatch(r"\s*[0-9]+\s*", label) is not None for label in labels]
    for line, (label, is_number) in enumerate(zip(labels, numeric, strict=True), 2):
        if is_number != numeric[0]:
            kinds = ("a name", "a number")[:: -1 if is_number else 1]
            raise ValueError(
                f"{path}, line {line}: label {shown(label)} is {kinds[0]}, and {shown(labels[0])} "
                f"in line 2 {kinds[1]}: all must be one or the other"
            )
        if is_number and len(label.strip().lstrip("0")) > len(str(LARGEST_LABEL)):
            raise ValueError(
                f"{path}, line {line}: a label below {LARGEST_LABEL + 1}, got {shown(label)}"
            )
    return numeric[0]


def _check_row(row: dict[str, str], where: str, base: Path, endings: Sequence[str]) -> None:
    if not row["path"] or not row["label"]:
        raise ValueError(
            f"{where}: path and label must be given, got {shown(row['path'])}, "
            f"{shown(row['label'])}"
        )
    path = Path(row["path"])
    if path.is_absolute() or ".." in path.parts or "\0" in row["path"]:
        raise ValueError(
            f"{where}: a path within the folder of the files, got {shown(row['path'])}"
        )
    is_folder = "" in endings and (base / row["path"]).is_dir()
    if Path(row["path"]).suffix.lower().lstrip(".") not in endings and not is_folder:
        wanted = ", ".join(ending or "nothing (a folder of frames)" for ending in endings)
        raise ValueError(f"{where}: a file ending in {wanted}, got {shown(row['path'])}")


def video_table(path: str | Path, root: str | Path | None = None) -> dict[str, Source]:
    """Read a table of videos; a path without an ending is a folder of frames."""
    return csv_file(path, root, (*VIDEO_ENDINGS, ""))
