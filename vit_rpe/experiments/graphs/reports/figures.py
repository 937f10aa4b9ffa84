"""Pictures of tables: lines and bars with the deviation over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...study.statistics import Estimate

WIDTH = 0.8  # of all bars of a group


@dataclass(frozen=True)
class Series:
    """One model, or one set: estimates at some places."""

    label: str
    places: tuple[Any, ...]
    values: tuple[Estimate, ...]

    @classmethod
    def of(
        cls, label: str, places: Iterable[Any], value: Callable[[Any], Estimate | None]
    ) -> Series:
        """Keep the places of which there is something to show."""
        found = [(place, estimate) for place in places if (estimate := value(place)) is not None]
        return cls(label, tuple(p for p, _ in found), tuple(e for _, e in found))

    @property
    def means(self) -> list[float]:
        return [value.mean for value in self.values]

    @property
    def deviations(self) -> list[float]:
        return [value.deviation or 0.0 for value in self.values]


def draw_lines(axes: Any, series: Sequence[Series], x: str, y: str, title: str) -> None:
    """Draw a line for each series, with error bars of one standard deviation."""
    for each in series:
        if each.places:
            axes.errorbar(
                each.places, each.means, yerr=each.deviations, label=each.label, marker="o",
                markersize=4, capsize=3, linewidth=1.2,
            )  # fmt: skip
    axes.set_xticks(sorted({place for each in series for place in each.places}))
    _finish(axes, x, y, title)


def draw_bars(
    axes: Any,
    series: Sequence[Series],
    groups: Sequence[str],
    y: str,
    title: str,
    marks: dict[tuple[str, str], float] | None = None,
) -> None:
    """Draw a group of bars for each of `groups`; `marks` are figures for (group, label)."""
    shown = [each for each in series if each.places]
    width = WIDTH / max(1, len(shown))
    for number, each in enumerate(shown):
        shift = (number - (len(shown) - 1) / 2) * width
        places = [groups.index(place) + shift for place in each.places]
        axes.bar(places, each.means, width, yerr=each.deviations, capsize=2, label=each.label)
        for group, place in zip(each.places, places, strict=True):
            figure = (marks or {}).get((group, each.label))
            if figure is not None:
                axes.plot([place - width / 2, place + width / 2], [figure] * 2, "k--", linewidth=1)
    axes.set_xticks(range(len(groups)), groups)
    lowest = [m - d for each in shown for m, d in zip(each.means, each.deviations, strict=True)]
    lowest += (marks or {}).values()
    if lowest:
        axes.set_ylim(max(0.0, 5 * (min(lowest) // 5 - 1)))
    _finish(axes, "", y, title)


def _finish(axes: Any, x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
