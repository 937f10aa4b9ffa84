"""The findings of a study, from the lines of its results: Markdown, CSV and a picture."""

from __future__ import annotations

import re
from pathlib import Path

from vit_rpe.extras import MissingExtra
from vit_rpe.files import atomic_write

from .errors import StudyError
from .figure import draw, draw_sizes
from .file import Study
from .live import hours
from .results import Results
from .tables import differences_of, tables_of, values_of
from .trials import Trial


def report_text(study: Study, trials: list[Trial], results: Results) -> str:
    """Return the section of a study, in Markdown."""
    done = [record for record in map(results.find, trials) if record is not None]
    seeds = ", ".join(str(seed) for seed in sorted({trial.seed for trial in trials}))
    part = (
        f"the part of {study.split} that is not trained on" if study.val_fraction else study.split
    )
    lines = [
        study.title,
        "",
        f"`vit-rpe study {study.name} --report`: {len(done)} of {len(trials)} trials are done, "
        f"seeds {seeds}. Figures are {study.metric} on {part}, after the last epoch. Intervals "
        "are Student's, 95 %, over seeds. Trials of one seed share data order, augmentation and "
        "mixing: differences are paired.",
    ]
    if done:
        lines += ["", _cost(done)]
    for table in tables_of(study, trials, results).values():
        lines += ["", table.markdown()]
    return "\n".join(lines) + "\n"


def write_report(study: Study, trials: list[Trial], results: Results, folder: Path) -> str | None:
    """Write report.md, tables as CSV and pictures; return why there is no picture, if so."""
    _write(folder / "report.md", f"# {study.name}\n\n{report_text(study, trials, results)}")
    for name, table in tables_of(study, trials, results).items():
        _write(folder / f"{name}.csv", table.csv())
    values = values_of(study, trials, results)
    try:
        if values:
            draw(study, values, differences_of(study, trials, results), folder / "figure.png")
        if any("sizes" in record for each in values for record in each.records):
            draw_sizes(study, values, folder / "sizes.png")
    except MissingExtra as error:
        return str(error)
    return None


def insert_report(study: Study, trials: list[Trial], results: Results, page: Path) -> None:
    """Replace the section of a study between its marks on a page."""
    begin, end = f"<!-- study: {study.name} -->", f"<!-- end of study: {study.name} -->"
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise StudyError(f"{page}: wanted the lines {begin} and {end}, once")
    section = f"{begin}\n{report_text(study, trials, results)}{end}"
    _write(page, pattern.sub(lambda _: section, text))


def _cost(done: list[dict]) -> str:
    days = sorted(record["finished"][:10] for record in done)
    spent = hours(sum(record["cpu_seconds"] for record in done))
    span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    revisions = sorted({str(record["revision"]) for record in done})
    changed = " (modified)" if any(record["modified"] for record in done) else ""
    versions = sorted(
        {f"torch {r['versions']['torch']}, timm {r['versions']['timm']}" for r in done}
    )
    machines = "; ".join(sorted({record["machine"] for record in done}))
    return (
        f"Cost: {spent} of one CPU core, {span}, {machines}; {'; '.join(versions)}; "
        f"commit {', '.join(revisions)}{changed}."
    )


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())
