"""Results of a study: a file with one line of JSON for each finished trial."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vit_rpe.files import atomic_write
from vit_rpe.messages import shown

from .comparisons import Levels
from .errors import StudyError
from .file import Study
from .trials import Trial, settings_of

Record = dict[str, Any]
NEEDED = {
    "study": str,
    "trial": str,
    "levels": dict,
    "seed": int,
    "settings": dict,
    "epochs": list,
    "split": str,
}


class Results:
    """The lines of one study in a file; those of other studies are refused."""

    def __init__(self, path: str | Path, study: Study):
        self.path, self.study = Path(path), study
        self.records: list[Record] = []
        if self.path.exists():
            self.records = [_parse(line, where, study) for where, line in _lines(self.path)]

    def find(self, trial: Trial) -> Record | None:
        """Return the line of a trial, if it is finished."""
        return next((each for each in self.records if _is_of(each, trial)), None)

    def is_complete(self, trial: Trial) -> bool:
        """Return whether a trial is finished, with all sizes that the study asks for by now."""
        record = self.find(trial)
        return record is not None and not {*map(str, self.study.sizes)} - {*_sizes(record)}

    def add(self, record: Record) -> None:
        """Write the line of a trial; the file is whole at every moment."""
        name = record["trial"]
        self.records = [*(each for each in self.records if each["trial"] != name), record]
        lines = (json.dumps(each, ensure_ascii=False) + "\n" for each in self.records)
        with atomic_write(self.path) as file:
            file.write("".join(lines).encode())

    def check_settings(self, recipes: Mapping[Trial, Any]) -> None:
        """Refuse lines of a trial that was trained with other settings than it has now."""
        for trial, recipe in recipes.items():
            record = self.find(trial)
            if record is None:
                continue
            now, before = settings_of(recipe), record["settings"]
            for key in sorted(now.keys() | before.keys()):
                if now.get(key) != before.get(key):
                    raise StudyError(
                        f"{self.path}: {trial.name} was trained with {key}="
                        f"{shown(before.get(key))}, now it is {shown(now.get(key))}: take another "
                        "--output, or remove the line"
                    )

    def values(self, trials: Iterable[Trial]) -> dict[tuple[Levels, int], float]:
        """Return the metric after the last epoch of each finished trial."""
        found = ((trial, self.find(trial)) for trial in trials)
        return {
            (trial.levels, trial.seed): last(record, self.study)
            for trial, record in found
            if record is not None
        }


def last(record: Record, study: Study) -> float:
    """Return the metric after the last epoch, never that of the best."""
    try:
        return float(record["epochs"][-1][study.metric])
    except (LookupError, TypeError, ValueError):
        raise StudyError(
            f"{study.path}: metric: the results of {record.get('trial')} have no {study.metric}"
        ) from None


def _sizes(record: Record) -> Record:
    return record.get("sizes", {})


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path} cannot be read: {error}") from None
    lines = enumerate(text.splitlines(), 1)
    return [(f"{path}:{number}", line) for number, line in lines if line.strip()]


def _parse(line: str, where: str, study: Study) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise StudyError(f"{where}: not a line of JSON: {shown(line)}") from None
    for name, kind in NEEDED.items():
        if not isinstance(record, dict) or not isinstance(record.get(name), kind):
            raise StudyError(f"{where}: not a finished trial: {name} is missing or of another type")
    if record["study"] != study.name:
        raise StudyError(
            f"{where}: a trial of the study {shown(record['study'])}, not {study.name}"
        )
    part = (record["split"], record.get("val_fraction", 0.0))
    if part != (study.split, study.val_fraction):
        raise StudyError(f"{where}: evaluated on {part}, not on the split of the study")
    return record


def _is_of(record: Record, trial: Trial) -> bool:
    return record["levels"] == dict(trial.levels) and record["seed"] == trial.seed
