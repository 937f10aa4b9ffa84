"""Paired differences: trials that share a seed share data order, augmentation and mixing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .errors import StudyError
from .file import Comparison, Study
from .statistics import Estimate, estimate
from .trials import Trial

Levels = tuple[tuple[str, str], ...]
Pair = tuple[Levels, Levels]


@dataclass(frozen=True)
class Row:
    """One line of a comparison: pairs of settings, averaged for each seed in `seeds`."""

    comparison: Comparison
    group: Levels  # the levels of `by`
    pairs: tuple[Pair, ...]
    seeds: tuple[int, ...]

    def difference(self, values: Mapping[tuple[Levels, int], float]) -> Estimate | None:
        """Return the mean difference over the seeds of which all values are there."""
        found = [
            fmean(values[this, seed] - values[minus, seed] for this, minus in self.pairs)
            for seed in self.seeds
            if all((levels, seed) in values for pair in self.pairs for levels in pair)
        ]
        return estimate(found) if found else None


def rows_of(study: Study, trials: Sequence[Trial]) -> list[Row]:
    """Return the rows of all comparisons; one of trials that the study does not have is refused."""
    rows: list[Row] = []
    for comparison in study.comparisons:
        found = list(_rows(comparison, trials))
        if not found:
            raise StudyError(
                f"{study.path}: comparison {comparison.name!r}: no two trials of the study that "
                "share a seed and the other factors"
            )
        rows += found
    return rows


def _rows(comparison: Comparison, trials: Sequence[Trial]) -> Iterable[Row]:
    seeds: dict[Levels, set[int]] = {}
    for trial in trials:
        seeds.setdefault(trial.levels, set()).add(trial.seed)
    groups: dict[Levels, list[Pair]] = {}
    for levels in seeds:
        other = tuple((f, comparison.minus.get(f, level)) for f, level in levels)
        if not _matches(dict(levels), comparison) or not seeds[levels] & seeds.get(other, set()):
            continue
        group = tuple((f, level) for f, level in levels if f in comparison.by)
        groups.setdefault(group, []).append((levels, other))
    for group, pairs in groups.items():
        common = set.intersection(*(seeds[levels] for pair in pairs for levels in pair))
        if common:
            yield Row(comparison, group, tuple(pairs), tuple(sorted(common)))


def _matches(levels: Mapping[str, str], comparison: Comparison) -> bool:
    return all(levels[f] == level for f, level in comparison.this.items()) and all(
        levels[f] in allowed for f, allowed in comparison.where.items()
    )
